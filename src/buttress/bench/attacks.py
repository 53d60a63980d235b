"""Races of attacks: what is raced, in which order, and the table of what came out."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from buttress.bench import networks
from buttress.bench.race import Race, Result
from buttress.bench.racers import installed
from buttress.bench.turns import Job, in_turns
from buttress.errors import UserError
from buttress.progress import Progress
from buttress.statistics import wilson

WORKERS_IMAGES = 256
REFERENCE = "pyautoattack"

EVENTS = {
    "pgd": "PGD-20",
    "autoattack": "AutoAttack standard",
    "workers": "short AutoAttack in one and two processes",
}


@dataclass(frozen=True)
class Heat:
    """Racers that attack the same network under the same threat."""

    event: str
    races: tuple[Race, ...]

    @property
    def title(self) -> str:
        first = self.races[0]
        return f"{networks.network(first.network).title}, {EVENTS[self.event]}, {first.threat}"


def heats(names: Sequence[str], events: Sequence[str], base: Race, most: int) -> Iterator[Heat]:
    """All heats; what ``base`` says of images, data and checkpoint holds for every race.

    Where it says nothing of images there are ``most`` of them at most. A checkpoint stands for the
    small network, which alone races its processes.
    """
    if strange := [event for event in events if event not in EVENTS]:
        raise UserError(f"`events` must be of {', '.join(EVENTS)}, but got {strange[0]!r}")
    for name in names:
        chosen = networks.network(name)
        for event in (e for e in events if e != "workers" or name == "small"):
            threats = {"pgd": ("Linf:8/255",), "workers": chosen.threats[:1]}
            counts = {"pgd": chosen.pgd_images, "workers": WORKERS_IMAGES}
            count = base.images or min(most, counts.get(event, chosen.images))
            for threat in threats.get(event, chosen.threats):
                here = replace(base, network=name, images=count, threat=threat)
                if name != "small":
                    here = replace(here, checkpoint=None)
                racers = installed(event)
                yield Heat(
                    event, tuple(replace(here, racer=r, warm=event == "pgd") for r in racers)
                )


def run_heat(heat: Heat, repeats: int, progress: Progress) -> list[dict[str, Any]]:
    """Races in turns: every racer once, then every racer again; a row of medians for each."""
    jobs = {race.racer: Job("buttress.bench.race", asdict(race)) for race in heat.races}
    found = in_turns(heat.title, jobs, repeats, progress)
    return [
        _row(heat, race, [Result(**r) for r in found[race.racer]])
        for race in heat.races
        if found[race.racer]
    ]


def _row(heat: Heat, race: Race, results: Sequence[Result]) -> dict[str, Any]:
    keys = [key for key in asdict(results[0]) if key != "left"]
    middle = {key: statistics.median(asdict(r)[key] for r in results) for key in keys}
    what = {"event": heat.event, **asdict(race), "title": heat.title, "left": results[0].left}
    return {**what, **middle, "repeats": len(results), "all_seconds": [r.seconds for r in results]}


HEAD = (
    "seconds",
    "of the slowest",
    "times the bare passes",
    "passes per image (F, B)",
    "MB",
    "robust",
    "verdicts as the reference",
)


def lines(rows: Sequence[dict[str, Any]], level: int = 0) -> Iterator[str]:
    """A Markdown table for each heat, under a title or a heading of this level."""
    for title in dict.fromkeys(row["title"] for row in rows):
        here = [row for row in rows if row["title"] == title]
        slowest = max(row["seconds"] for row in here)
        reference = next((row for row in here if row["racer"] == REFERENCE), None)
        mark = "#" * level + " " if level else ""
        yield f"\n{mark}{title}, {here[0]['images']} images\n"
        yield "| | " + " | ".join(HEAD) + " |"
        yield "| --- |" + " --- |" * len(HEAD)
        for row in here:
            cells = (
                f"{row['seconds']:.2f}{_preparing(row)}",
                f"{row['seconds'] / slowest:.3f}",
                f"{row['seconds'] / row['floor']:.2f}" if row["floor"] else "",
                f"{row['forward']:.0f}, {row['backward']:.0f}" if row["floor"] else "",
                f"{row['memory']:.0f}",
                "" if row["racer"] == "bare passes" else _robust(row),
                _agreement(row, reference),
            )
            yield f"| {row['racer']} | " + " | ".join(cells) + " |"


def _preparing(row: dict[str, Any]) -> str:
    return f" ({row['preparing']:.2f} of it preparing)" if row.get("preparing") else ""


def _robust(row: dict[str, Any]) -> str:
    """Images that are still right, and the 95% interval of their share."""
    low, high = wilson(round(row["robust"]), row["images"])
    return f"{row['robust']:.0f} ({100 * low:.0f} to {100 * high:.0f}%)"


def _agreement(row: dict[str, Any], reference: dict[str, Any] | None) -> str:
    """The share of images on which a racer and the reference say the same."""
    if reference is None or row is reference or not all("left" in r for r in (row, reference)):
        return ""
    return f"{1 - len(set(row['left']) ^ set(reference['left'])) / row['images']:.1%}"


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The races with the reference AutoAttack in one short Markdown table."""
    yield "| network, threat | pyautoattack | `autoattack` | `fast` | robust images |"
    yield "| --- | --- | --- | --- | --- |"
    heats = [row for row in rows if row["event"] == "autoattack"]
    for title in dict.fromkeys(row["title"] for row in heats):
        here = {row["racer"]: row for row in heats if row["title"] == title}
        if REFERENCE not in here:
            continue
        base = here[REFERENCE]
        ours, fast = (here[f"buttress {name}"] for name in ("autoattack", "fast"))
        where = f"{networks.NETWORKS[base['network']].title}, {base['threat']}"
        times = [
            f"{r['seconds']:.0f} s ({r['seconds'] / base['seconds']:.2f})" for r in (ours, fast)
        ]
        left = ", ".join(f"{r['robust']:.0f}" for r in (base, ours, fast))
        yield (
            f"| {where} | {base['seconds']:.0f} s | {' | '.join(times)} | "
            f"{left} of {base['images']} |"
        )
