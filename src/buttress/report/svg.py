"""Pieces of SVG as text: every string that comes in is escaped, every colour is a CSS class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Scale:
    """A straight line from data to pixels."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return self.start + share * (self.stop - self.start)


def element(name: str, *children: str, css: str = "", **attributes: object) -> str:
    """One element; children must be made by this module, attribute values may be anything."""
    written = f' class="{escape(css)}"' if css else ""
    for key, value in attributes.items():
        shown = escape(value) if isinstance(value, str) else plain(value)
        written += f' {key.replace("_", "-")}="{shown}"'
    return f"<{name}{written}>{''.join(children)}</{name}>"


def plain(value: object) -> str:
    """Numbers to a hundredth of a pixel; anything else as escaped text."""
    if not isinstance(value, float):
        return escape(str(value))
    spelt = f"{value:.2f}"
    return spelt.rstrip("0").rstrip(".") if spelt[-1] == "0" else spelt


def text(x: float, y: float, content: str, css: str = "", anchor: str = "start") -> str:
    return element("text", escape(content), css=css, x=x, y=y, text_anchor=anchor)


def tip(content: str) -> str:
    """What a pointer shows when it rests on an element."""
    return element("title", escape(content))


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return element("line", css=css, x1=x1, y1=y1, x2=x2, y2=y2)


def path(points: list[tuple[float, float]], css: str, *children: str) -> str:
    """A line through points; it breaks where a point is not finite."""
    pieces, pen = [], "M"
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        pieces.append(f"{pen}{plain(float(x))} {plain(float(y))}")
        pen = "L"
    return element("path", *children, css=css, d="".join(pieces))


def figure(width: float, height: float, label: str, *children: str) -> str:
    """The whole drawing, with a description for those who do not see it."""
    return element(
        "svg",
        *children,
        css="chart",
        viewBox=f"0 0 {plain(float(width))} {plain(float(height))}",
        role="img",
        aria_label=label,
    )


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover a range: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def shorten(name: str, room: int) -> str:
    """A name that fits, its end replaced by dots."""
    return name if len(name) <= room else name[: room - 1] + "…"
