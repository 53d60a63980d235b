"""Pieces of SVG as text: every string that comes in is escaped, every color is a CSS class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class LinearScale:
    """A straight line from data to pixels."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        data_range = self.high - self.low
        fraction = (value - self.low) / data_range if data_range else 0.5
        return self.start + fraction * (self.stop - self.start)


def svg_element(name: str, *children: str, css: str = "", **attributes: object) -> str:
    """One element; children must be made by this module, attribute values may be anything."""
    attributes_text = f' class="{escape(css)}"' if css else ""
    for key, value in attributes.items():
        value_text = escape(value) if isinstance(value, str) else format_svg_number(value)
        attributes_text += f' {key.replace("_", "-")}="{value_text}"'
    return f"<{name}{attributes_text}>{''.join(children)}</{name}>"


def format_svg_number(value: object) -> str:
    """Numbers to a hundredth of a pixel; anything else as escaped text."""
    if not isinstance(value, float):
        return escape(str(value))
    digits = f"{value:.2f}"
    return digits.rstrip("0").rstrip(".") if digits[-1] == "0" else digits


def svg_text(x: float, y: float, content: str, css: str = "", anchor: str = "start") -> str:
    return svg_element("text", escape(content), css=css, x=x, y=y, text_anchor=anchor)


def svg_tooltip(content: str) -> str:
    """Tooltip of an element."""
    return svg_element("title", escape(content))


def svg_line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return svg_element("line", css=css, x1=x1, y1=y1, x2=x2, y2=y2)


def svg_path(points: list[tuple[float, float]], css: str, *children: str) -> str:
    """A line through points; it breaks where a point is not finite."""
    pieces, command = [], "M"
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            command = "M"
            continue
        pieces.append(f"{command}{format_svg_number(float(x))} {format_svg_number(float(y))}")
        command = "L"
    return svg_element("path", *children, css=css, d="".join(pieces))


def svg_root(width: float, height: float, label: str, *children: str) -> str:
    """The whole drawing, with a description for screen readers."""
    return svg_element(
        "svg",
        *children,
        css="chart",
        viewBox=f"0 0 {format_svg_number(float(width))} {format_svg_number(float(height))}",
        role="img",
        aria_label=label,
    )


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover a range: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def truncate(name: str, max_length: int) -> str:
    """A name that fits, its end replaced by dots."""
    return name if len(name) <= max_length else name[: max_length - 1] + "…"
