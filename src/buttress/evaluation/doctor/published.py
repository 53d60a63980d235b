"""Are corrupted images made as the published ones were?"""

from __future__ import annotations

from buttress.data.corruptions import CORRUPTIONS
from buttress.evaluation.doctor.core import CHECKS, Chart, finding
from buttress.records.corruption import is_official
from buttress.records.diagnosis import Finding


@CHECKS.register("not_as_published", tags=("records",), paper="arXiv:1903.12261")
def not_as_published(chart: Chart) -> Finding | None:
    """Corrupted images that could not be made as the published ones were."""
    last = chart.records[-1] if chart.records else None  # so that each record tells of itself
    if last is None or not last.is_corruption or is_official(last):
        return None
    name = str(last.meta["args"]["corruption"])
    why = CORRUPTIONS.entry(name).extra.get("note") if name in CORRUPTIONS else None
    if why is None:
        return None
    return finding(
        not_as_published,
        "note",
        f"{name} is not that of the published images ({why})",
        "compare it with numbers made here only, or put the official images into the cache",
        {"corruption": name},
    )
