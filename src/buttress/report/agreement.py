"""A column that was published against the same column measured: points around a diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buttress.report.charts import Frame, axes, compact
from buttress.report.svg import Scale, element, figure, line, tip
from buttress.report.words import percent


@dataclass(frozen=True)
class Pair:
    """One row of a table: what was published, what was measured, and its interval."""

    name: str
    published: float
    measured: float
    low: float
    high: float
    is_distrusted: bool = False  # drawn hollow


def against(pairs: Sequence[Pair], column: str, unit: str) -> str:
    """Equal axes, so that the diagonal means equal numbers."""
    spelt = percent if unit == "percent" else compact
    ends = [v for p in pairs for v in (p.published, p.low, p.high, p.measured)]
    margin = 0.06 * (max(ends) - min(ends)) or 0.02 * abs(ends[0]) or 0.02
    low, high = min(ends) - margin, max(ends) + margin
    if unit == "percent":
        low, high = max(0.0, low), min(1.0, high)
    frame = Frame("published", "measured", width=340, height=310)
    x = Scale(low, high, 46, frame.width - 14)
    y = Scale(low, high, frame.height - 40, 12)
    parts = axes(x, y, frame, spelt, spelt)
    parts.append(line(x(low), y(low), x(high), y(high), "diagonal"))
    for p in pairs:
        css = f"dot {'hollow ' if p.is_distrusted else ''}c0"
        said = tip(f"{p.name}: published {spelt(p.published)}, measured {spelt(p.measured)}")
        whisker = line(x(p.published), y(p.low), x(p.published), y(p.high), "whisker c0")
        spot = element("circle", css=css, cx=x(p.published), cy=y(p.measured), r=4.5)
        parts.append(element("g", said, whisker, spot))
    said_all = "; ".join(f"{p.name} {spelt(p.published)}, {spelt(p.measured)}" for p in pairs[:40])
    label = f"{column}: published against measured. {said_all}"
    return figure(frame.width, frame.height, label, *parts)
