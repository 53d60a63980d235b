"""The corruptions of a suite as one column: 75 of them would hide the attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from buttress.records.corruption import CORRUPTION, Corruptions, summary_of
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
        definition=Definition(COLUMN, CORRUPTION, "", said(summary)),
        position=min(int(r.meta.get("position", 10**6)) for r in found),
        share=Share(summary.accuracy * images, images),
        warnings=warnings,
        made=together(found),
    )


def together(records: Sequence[AttackRecord]) -> dict[str, Any]:
    """The metadata of the first, with the cost of all."""
    costs = {
        key: sum(float(r.meta.get(key) or 0) for r in records)
        for key in ("forward", "backward", "seconds")
    }
    return {**records[0].meta, **costs}


def said(summary: Corruptions) -> str:
    """``fog, snow; severities 1, 2, 3; counted in the worst case``."""
    severities = sorted({s for row in summary.accuracies.values() for s in row})
    return "; ".join(
        [
            ", ".join(summary.accuracies),
            f"severities {', '.join(map(str, severities))}",
            "counted in the worst case" if summary.counts else "not counted in the worst case",
        ]
    )


def one_column(names: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """Names of a suite's entries, with one in place of all corruptions."""
    return tuple(dict.fromkeys(COLUMN if name in wanted else name for name in names))
