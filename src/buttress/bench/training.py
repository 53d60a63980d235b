"""Races of trainers: an epoch of PGD-10 training, ours beside others and the bare passes."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from buttress.bench.lap import TRAINERS, Lap
from buttress.bench.turns import Job, in_turns
from buttress.progress import Progress
from buttress.statistics import wilson

NETWORKS = ("resnet_18_slim", "vit_mini")
FLOOR, OTHERS = "bare passes", "textbook loop"


def run_laps(base: Lap, repeats: int, progress: Progress) -> list[dict[str, Any]]:
    """Every trainer that is installed on one network; a row of medians for each."""
    names = [e.name for e in TRAINERS if importlib.util.find_spec(e.extra["package"])]
    jobs = {name: Job("buttress.bench.lap", {**asdict(base), "trainer": name}) for name in names}
    found = in_turns(f"{base.network}, PGD-10 training", jobs, repeats, progress)
    return [
        {
            **asdict(base),
            "trainer": name,
            **{key: statistics.median(r[key] for r in laps) for key in laps[0]},
            "repeats": len(laps),
            "all_seconds": [r["seconds"] for r in laps],
        }
        for name, laps in found.items()
        if laps
    ]


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A Markdown table for each network."""
    for network in dict.fromkeys(row["network"] for row in rows):
        here = {row["trainer"]: row for row in rows if row["network"] == network}
        first = next(iter(here.values()))
        yield f"\n{network}, {first['epochs']} x {first['images']} images\n"
        yield "| | seconds | times the bare passes | times the textbook loop | clean | PGD-20 |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for name, row in here.items():
            cells = [f"{row['seconds']:.1f}"]
            for other in (FLOOR, OTHERS):
                base = here.get(other)
                cells.append("" if base is None else f"{row['seconds'] / base['seconds']:.2f}")
            learnt = name != FLOOR
            cells += [_share(row, k) if learnt else "" for k in ("clean", "robust")]
            yield f"| {name} | " + " | ".join(cells) + " |"


def _share(row: dict[str, Any], key: str) -> str:
    """An accuracy with its 95% interval."""
    images = int(row["judged"])
    low, high = wilson(round(row[key] * images), images)
    return f"{100 * row[key]:.1f}% ({100 * low:.0f} to {100 * high:.0f})"
