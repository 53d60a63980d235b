"""How the numbers of a board were made, gathered from the metadata of its records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from buttress.records.corruption import CORRUPTION
from buttress.report.board import Board, Column
from buttress.report.views import Definition, Result
from buttress.report.words import between, duration, meaning, pretty_threat


@dataclass(frozen=True)
class Step:
    """One attack of the suite and what it cost."""

    title: str
    attack: str
    threat: str
    meaning: str
    training: str
    args: str
    forward: str
    backward: str
    seconds: str


@dataclass(frozen=True)
class Method:
    steps: tuple[Step, ...]
    facts: Mapping[str, str]
    command: str  # of the first row


def method(board: Board) -> Method:
    results = [r for row in board.rows for r in row.results if r is not None]
    steps = tuple(
        step(column, [r for row in board.rows if (r := row.results[i]) is not None])
        for i, column in enumerate(board.columns)
    )
    first = next((r for row in board.rows for r in row.results if r is not None), None)
    command = str(first.made.get("command", "")) if first else ""
    return Method(steps, facts(board, results), command)


def step(column: Column, results: Sequence[Result]) -> Step:
    definition = column.definition
    return Step(
        title=column.title,
        attack=definition.attack,
        threat=pretty_threat(definition.threat),
        meaning=meant(definition) if results else "no result that says",
        training=column.training,
        args=definition.args,
        forward=spread(r.made.get("forward") for r in results),
        backward=spread(r.made.get("backward") for r in results),
        seconds=seconds(results),
    )


def meant(definition: Definition) -> str:
    if definition.attack == CORRUPTION:
        return "noise, blur, weather and compression without an adversary, on all images"
    return meaning(definition.threat)


def facts(board: Board, results: Sequence[Result]) -> dict[str, str]:
    """Each fact once; where records differ, all values."""
    times = sorted(str(r.made["time"]) for r in results if r.made.get("time"))
    found = {
        "data": f"{board.dataset}, {board.split or 'unknown'} split, {board.images} images",
        "suite": board.suite,
        "checkpoint": different(r.made.get("checkpoint") for r in results),
        "attack seed": different(r.made.get("seed") for r in results),
        "made": times[0] if len(set(times)) == 1 else " to ".join([*times[:1], *times[-1:]]),
        "machine": different(r.made.get("platform") for r in results),
        "Python": different(r.made.get("python") for r in results),
        **versions([r.made.get("versions") for r in results]),
    }
    return {k: v for k, v in found.items() if v}


def versions(found: Sequence[Any]) -> dict[str, str]:
    """Package -> version, or all versions that occur."""
    maps = [v for v in found if isinstance(v, Mapping)]
    packages = dict.fromkeys(str(name) for v in maps for name in v)
    return {name: different(v.get(name) for v in maps) for name in packages}


def different(found: Iterable[Any]) -> str:
    """The distinct values in order, at most five."""
    distinct = list(dict.fromkeys(str(v) for v in found if v is not None and v != ""))
    return ", ".join(distinct[:5]) + (" …" if len(distinct) > 5 else "")


def numbers(found: Iterable[Any]) -> list[float]:
    kept = (float(v) for v in found if isinstance(v, int | float))
    return [v for v in kept if math.isfinite(v)]


def spread(found: Iterable[Any]) -> str:
    """``40`` or ``12–40``: smallest and largest over the models."""
    kept = numbers(found)
    if not kept:
        return ""
    low, high = (f"{v:.0f}" if v >= 10 else f"{v:.2g}" for v in (min(kept), max(kept)))
    return between(low, high)


def seconds(results: Sequence[Result]) -> str:
    kept = numbers(r.made.get("seconds") for r in results)
    if not kept:
        return ""
    low, high = duration(min(kept)), duration(max(kept))
    return between(low, high)
