"""Evaluation protocol of a leaderboard, from the metadata of its records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from buttress.report.formatting import explain_threat, format_duration, format_range, format_threat
from buttress.report.leaderboard import Leaderboard, LeaderboardColumn
from buttress.results.attack_record import AttackDefinition
from buttress.results.evaluation import SuiteEntryResult
from buttress.results.run import shorten_paths
from buttress.results.suite_spec import CORRUPTION_ATTACK


@dataclass(frozen=True)
class AttackMethod:
    """One attack of the suite and what it cost."""

    title: str
    attack: str
    threat: str
    explanation: str
    relation: str
    args: str
    forward_passes: str
    backward_passes: str
    time: str
    peak_memory: str


@dataclass(frozen=True)
class EvaluationMethod:
    attacks: tuple[AttackMethod, ...]
    facts: Mapping[str, str]
    command: str  # of the first row


def describe_method(board: Leaderboard) -> EvaluationMethod:
    results = [r for row in board.rows for r in row.results if r is not None]
    steps = tuple(
        describe_attack(column, [r for row in board.rows if (r := row.results[i]) is not None])
        for i, column in enumerate(board.columns)
    )
    first = next((r for row in board.rows for r in row.results if r is not None), None)
    command = shorten_paths(str(first.metadata.get("command", ""))) if first else ""
    return EvaluationMethod(steps, method_facts(board, results), command)


def describe_attack(column: LeaderboardColumn, results: Sequence[SuiteEntryResult]) -> AttackMethod:
    definition = column.definition
    return AttackMethod(
        title=column.title,
        attack=definition.attack,
        threat=format_threat(definition.threat),
        explanation=explain_attack(definition) if results else "unknown",
        relation=column.relation,
        args=definition.args,
        forward_passes=format_value_range(r.metadata.get("forward_passes") for r in results),
        backward_passes=format_value_range(r.metadata.get("backward_passes") for r in results),
        time=format_time_range(results),
        peak_memory=format_memory(r.metadata.get("peak_memory_mb") for r in results),
    )


def explain_attack(definition: AttackDefinition) -> str:
    if definition.attack == CORRUPTION_ATTACK:
        return "common corruptions (noise, blur, weather, compression) of all images"
    return explain_threat(definition.threat)


def method_facts(board: Leaderboard, results: Sequence[SuiteEntryResult]) -> dict[str, str]:
    """Facts about the evaluations; all values where records differ."""
    times = sorted(str(r.metadata["time"]) for r in results if r.metadata.get("time"))
    facts = {
        "data": f"{board.dataset}, {board.split or 'unknown'} split, {board.images} images",
        "suite": board.suite,
        "checkpoint": distinct_values(r.metadata.get("checkpoint") for r in results),
        "attack seed": distinct_values(r.metadata.get("seed") for r in results),
        "made": times[0] if len(set(times)) == 1 else " to ".join([*times[:1], *times[-1:]]),
        "machine": distinct_values(r.metadata.get("platform") for r in results),
        "Python": distinct_values(r.metadata.get("python") for r in results),
        **package_versions([r.metadata.get("versions") for r in results]),
    }
    return {k: v for k, v in facts.items() if v}


def package_versions(version_maps: Sequence[Any]) -> dict[str, str]:
    """Package -> version, or all versions that occur."""
    maps = [v for v in version_maps if isinstance(v, Mapping)]
    packages = dict.fromkeys(str(name) for v in maps for name in v)
    return {name: distinct_values(v.get(name) for v in maps) for name in packages}


def distinct_values(values: Iterable[Any]) -> str:
    """The distinct values in order, at most five."""
    distinct = list(dict.fromkeys(str(v) for v in values if v is not None and v != ""))
    return ", ".join(distinct[:5]) + (" …" if len(distinct) > 5 else "")


def finite_numbers(values: Iterable[Any]) -> list[float]:
    floats = (float(v) for v in values if isinstance(v, int | float))
    return [v for v in floats if math.isfinite(v)]


def format_value_range(values: Iterable[Any]) -> str:
    """``40`` or ``12–40``: smallest and largest over the models."""
    floats = finite_numbers(values)
    if not floats:
        return ""
    low, high = (f"{v:.0f}" if v >= 10 else f"{v:.2g}" for v in (min(floats), max(floats)))
    return format_range(low, high)


def format_time_range(results: Sequence[SuiteEntryResult]) -> str:
    floats = finite_numbers(r.metadata.get("seconds") for r in results)
    if not floats:
        return ""
    low, high = format_duration(min(floats)), format_duration(max(floats))
    return format_range(low, high)


def format_memory(peaks_mb: Iterable[Any]) -> str:
    """``820 MB``: the largest peak; empty where it was not measured."""
    peak = max(finite_numbers(peaks_mb), default=0.0)
    return f"{peak:,.0f} MB" if peak > 0 else ""
