"""The corruptions of a suite as one column: 75 of them would hide the attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from buttress.records.corruption import CORRUPTION, Corruptions, is_official, summary_of
from buttress.records.diagnosis import findings_in, merged
from buttress.records.evaluation import AttackRecord
from buttress.report.views import Definition, Result, Share

COLUMN = "corruptions"


def corruption_result(
    records: Mapping[str, AttackRecord], wanted: Sequence[str], warnings: tuple[str, ...]
) -> Result | None:
    """One result for all corruptions; None if there are none, or while some are missing."""
    found = [r for r in records.values() if r.is_corruption]
    summary = summary_of(found)
    if summary is None or set(wanted) - set(records):
        return None
    images = len(summary.shares)
    return Result(
        definition=Definition(COLUMN, CORRUPTION, "", said(summary, found)),
        position=min(int(r.meta.get("position", 10**6)) for r in found),
        share=Share(summary.accuracy * images, images, summary.interval),
        warnings=warnings,
        made=together(found),
    )


def together(records: Sequence[AttackRecord]) -> dict[str, Any]:
    """The metadata of the first, with the cost and the findings of all."""
    costs = {
        key: sum(float(r.meta.get(key) or 0) for r in records)
        for key in ("forward", "backward", "seconds")
    }
    findings = merged(f for r in records for f in findings_in(r.meta))
    told = {"findings": [f.model_dump(mode="json") for f in findings]}
    return {**records[0].meta, **costs, **told}


def said(summary: Corruptions, records: Sequence[AttackRecord]) -> str:
    """``fog, snow; severities 1, 2, 3; made here; counted in the worst case``."""
    severities = sorted({s for row in summary.accuracies.values() for s in row})
    return "; ".join(
        [
            ", ".join(summary.accuracies),
            f"severities {', '.join(map(str, severities))}",
            *origin(records),
            "counted in the worst case" if summary.counts else "not counted in the worst case",
        ]
    )


def origin(records: Sequence[AttackRecord]) -> list[str]:
    """Where the images are from: numbers on published ones and on ours are not the same numbers."""
    here = [r for r in records if not is_official(r)]
    if not here:
        return ["the published images"]
    told = [f.evidence for r in here for f in findings_in(r.meta)]
    other = dict.fromkeys(str(e["corruption"]) for e in told if "corruption" in e)
    share = "made here" if len(here) == len(records) else f"{len(here)} of {len(records)} made here"
    return [f"{share}, {', '.join(other)} not as published" if other else share]


def one_column(names: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """Names of a suite's entries, with one in place of all corruptions."""
    return tuple(dict.fromkeys(COLUMN if name in wanted else name for name in names))
