"""Charts as SVG text. A color is an index; the style sheet defines it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from buttress.report.formatting import format_interval, format_percent, format_tenths
from buttress.report.svg import (
    LinearScale,
    svg_element,
    svg_line,
    svg_path,
    svg_root,
    svg_text,
    svg_tooltip,
    truncate,
)
from buttress.report.svg import round_ticks as round_ticks

NUM_COLORS = 8
MAX_MARKED_POINTS = 12  # longer lines have no dots


@dataclass(frozen=True)
class BarItem:
    """An accuracy with its interval; ``value`` None is a missing result."""

    name: str
    value: float | None
    tooltip_detail: str = ""  # for the description, not drawn
    low: float = 0.0
    high: float = 0.0
    color: int = 0
    is_hollow: bool = False
    tick_value: float | None = None  # a second value, drawn as a tick


@dataclass(frozen=True)
class LineSeries:
    """A line; with ``low`` and ``high``, also a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    color: int = 0
    is_dashed: bool = False


@dataclass(frozen=True)
class ScatterPoint:
    name: str
    x: float
    y: float
    low: float
    high: float
    color: int | None = None  # None: gray
    is_hollow: bool = False


@dataclass(frozen=True)
class ChartFrame:
    """Size of a chart and labels of its axes."""

    x_label: str
    y_label: str
    is_percent: bool = True  # the y axis is percent, from 0 to 100
    is_x_percent: bool = True  # the x axis of a scatter plot is percent
    x_ticks: Mapping[float, str] | None = None  # texts at places of the x axis
    width: float = 480
    height: float = 300


def draw_bars(
    items: Sequence[BarItem], label: str, width: float = 340, name_width: float = 118
) -> str:
    """Horizontal bars with interval whiskers, one line each, names on the left."""
    x = LinearScale(0, 1, name_width + 8, width - 44)
    bottom = 6 + 26 * len(items)
    parts = [svg_line(x(t), 4, x(t), bottom, "grid") for t in (0, 0.5, 1)]
    parts += [svg_text(x(t), bottom + 15, f"{t:.0%}", "tick", "middle") for t in (0, 0.5, 1)]
    for index, item in enumerate(items):
        parts.append(draw_bar(item, x, 6 + 26 * index, name_width))
    description = "; ".join(f"{bar_label(b)} {format_percent_or_missing(b.value)}" for b in items)
    return svg_root(width, bottom + 22, f"{label}. {description}", *parts)


def draw_bar(item: BarItem, x: LinearScale, top: float, name_width: float) -> str:
    name = svg_text(name_width, top + 15, truncate(item.name, int(name_width / 6.4)), "name", "end")
    if item.value is None:
        missing = svg_text(x(0) + 5, top + 15, "missing", "missing")
        return svg_element("g", svg_tooltip(f"{bar_label(item)}: missing"), name, missing)
    shape = "bar hollow" if item.is_hollow else "bar"
    middle = top + 11.0
    parts = [
        svg_tooltip(
            f"{bar_label(item)}: {format_tenths(item.value)}% "
            f"(95% interval {format_interval(item.low, item.high)})"
        ),
        name,
        svg_element(
            "rect",
            css=f"{shape} c{item.color % NUM_COLORS}",
            x=x(0),
            y=top + 3.0,
            width=max(x(item.value) - x(0), 0.75),
            height=16,
            rx=2,
        ),
        svg_line(x(item.low), middle, x(item.high), middle, "whisker"),
        svg_line(x(item.low), middle - 3, x(item.low), middle + 3, "cap"),
        svg_line(x(item.high), middle - 3, x(item.high), middle + 3, "cap"),
        svg_text(x.stop + 40, top + 15, format_tenths(item.value), "value", "end"),
    ]
    if item.tick_value is not None:
        parts.insert(
            -1, svg_line(x(item.tick_value), top + 1, x(item.tick_value), top + 21, "mark-tick")
        )
    return svg_element("g", *parts)


def bar_label(item: BarItem) -> str:
    return f"{item.name} ({item.tooltip_detail})" if item.tooltip_detail else item.name


def draw_lines(series: Sequence[LineSeries], frame: ChartFrame, label: str) -> str:
    """Lines over a common x axis, with bands where intervals are known."""
    xs = [v for s in series for v in s.x]
    low, high = y_range(series, frame)
    x = LinearScale(min(xs, default=0), max(xs, default=1), 46, frame.width - 14)
    y = LinearScale(low, high, frame.height - 40, 12)
    parts = draw_axes(x, y, frame)
    for s in series:
        color = f"c{s.color % NUM_COLORS}"
        if s.low and s.high:
            edge = [*zip(s.x, s.high, strict=True), *reversed(list(zip(s.x, s.low, strict=True)))]
            parts.append(svg_path([(x(a), y(b)) for a, b in edge], f"band {color}"))
    for s in series:
        color = f"c{s.color % NUM_COLORS}"
        points = [(x(a), y(b)) for a, b in zip(s.x, s.y, strict=True)]
        style = "line dashed" if s.is_dashed else "line"
        parts.append(svg_path(points, f"{style} {color}", svg_tooltip(s.name)))
        parts += [
            draw_point(s, i, at, frame)
            for i, at in enumerate(points)
            if len(points) <= MAX_MARKED_POINTS
        ]
    return svg_root(frame.width, frame.height, label, *parts)


def y_range(series: Sequence[LineSeries], frame: ChartFrame) -> tuple[float, float]:
    if frame.is_percent:
        return 0.0, 1.0
    values = [v for s in series for v in s.y if math.isfinite(v)]
    return min([0.0, *values]), max(values, default=1.0) or 1.0


def draw_point(s: LineSeries, index: int, at: tuple[float, float], frame: ChartFrame) -> str:
    value = s.y[index]
    if not math.isfinite(value):
        return ""
    value_text = f"{format_tenths(value)}%" if frame.is_percent else f"{value:.4g}"
    if s.low and s.high:
        value_text += f" (95% interval {format_interval(s.low[index], s.high[index])})"
    css = f"dot {'hollow ' if s.is_dashed else ''}c{s.color % NUM_COLORS}"
    x_value = (frame.x_ticks or {}).get(s.x[index], f"{s.x[index]:.4g}")
    tooltip = svg_tooltip(f"{s.name}, {frame.x_label} {x_value}: {value_text}")
    return svg_element("circle", tooltip, css=css, cx=at[0], cy=at[1], r=3)


def draw_scatter(points: Sequence[ScatterPoint], frame: ChartFrame, label: str) -> str:
    """Points with vertical interval whiskers; axes as wide as the data, shares of y from 0 to 1."""
    x = LinearScale(*padded_range([p.x for p in points], frame.is_x_percent), 46, frame.width - 14)
    bounds = [v for p in points for v in (p.low, p.high)]
    y_bounds = (0.0, 1.0) if frame.is_percent else padded_range(bounds, False)
    y = LinearScale(*y_bounds, frame.height - 40, 12)
    x_text = format_percent if frame.is_x_percent else format_compact
    parts = draw_axes(x, y, frame, x_text)
    for p in points:
        color = "gray" if p.color is None else f"c{p.color % NUM_COLORS}"
        css = f"dot {'hollow ' if p.is_hollow else ''}{color}"
        tooltip = svg_tooltip(
            f"{p.name}: {frame.x_label} {format_axis_value(p.x, frame.is_x_percent)}, "
            f"{frame.y_label} {format_axis_value(p.y, frame.is_percent)}"
        )
        whisker = svg_line(x(p.x), y(p.low), x(p.x), y(p.high), f"whisker {color}")
        parts.append(
            svg_element(
                "g", tooltip, whisker, svg_element("circle", css=css, cx=x(p.x), cy=y(p.y), r=5)
            )
        )
    return svg_root(frame.width, frame.height, label, *parts)


def padded_range(values: Sequence[float], is_share: bool) -> tuple[float, float]:
    """Range of the data with a margin; that of shares stays in [0, 1]."""
    low, high = min(values), max(values)
    margin = max(0.02, 0.12 * (high - low)) if is_share else 0.08 * (high - low) or 0.5
    if is_share:
        return max(0.0, low - margin), min(1.0, high + margin)
    return low - margin, high + margin


def format_axis_value(value: float, is_share: bool) -> str:
    return f"{format_tenths(value)}%" if is_share else format_compact(value)


def draw_overlaid_bars(
    names: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    frame: ChartFrame,
    label: str,
) -> str:
    """Bars of several series over each other at every place, the tallest behind."""
    values = [v for row in series.values() for v in row if v is not None]
    x = LinearScale(-0.5, len(names) - 0.5, 46, frame.width - 14)
    y = LinearScale(min(0.0, *values), max(values) or 1.0, frame.height - 40, 12)
    width = 0.8 * (x(1) - x(0))
    parts = draw_axes(x, y, replace(frame, x_label=""), lambda _: "")
    for place, name in enumerate(names):
        bars = [
            (row[place], color, who)
            for color, (who, row) in enumerate(series.items())
            if row[place] is not None
        ]
        for value, color, who in sorted(bars, key=lambda bar: -abs(bar[0] or 0.0)):
            top, bottom = sorted((y(value or 0.0), y(0.0)))
            tooltip = svg_tooltip(
                f"{who}, {name}: {format_axis_value(value or 0, frame.is_percent)}"
            )
            parts.append(
                svg_element(
                    "rect", tooltip, css=f"bar overlaid c{color % NUM_COLORS}",
                    x=x(place) - width / 2, y=top, width=width, height=max(bottom - top, 0.75),
                )
            )  # fmt: skip
        parts.append(svg_text(x(place), y.start + 17, truncate(name, 9), "tick", "middle"))
    return svg_root(frame.width, frame.height, f"{label}. {', '.join(series)}", *parts)


def draw_histogram(
    edges: Sequence[float], counts: Mapping[str, Sequence[int]], frame: ChartFrame
) -> str:
    """Steps over bins with a log axis of counts; the first entry is filled."""
    top = max((c for values in counts.values() for c in values), default=1)
    x = LinearScale(edges[0], edges[-1], 46, frame.width - 14)
    # The axis starts below one: a bin of one weight must not look empty.
    y = LinearScale(-0.4, math.ceil(math.log10(max(top, 2))), frame.height - 40, 12)
    parts = draw_axes(x, y, frame, format_compact, format_power_of_ten)
    for index, (name, values) in enumerate(counts.items()):
        outline = [(x(edges[0]), y.start)]
        for k, count in enumerate(values):
            height = y(math.log10(count)) if count else y.start
            outline += [(x(edges[k]), height), (x(edges[k + 1]), height)]
        outline.append((x(edges[-1]), y.start))
        css = "area gray" if index == 0 else f"line thin c{(index - 1) % NUM_COLORS}"
        parts.append(svg_path(outline, css, svg_tooltip(name)))
    description = f"Weights by size, {edges[0]:.3g} to {edges[-1]:.3g}, counts on a log axis"
    return svg_root(frame.width, frame.height, description, *parts)


def draw_axes(
    x: LinearScale,
    y: LinearScale,
    frame: ChartFrame,
    x_text: Callable[[float], str] | None = None,
    y_text: Callable[[float], str] | None = None,
) -> list[str]:
    """Grid, tick texts and names of both axes."""
    y_text = y_text or (format_percent if frame.is_percent else format_compact)
    is_log = y_text is format_power_of_ten
    parts = []
    for t in range(int(y.high) + 1) if is_log else round_ticks(y.low, y.high, 5):
        parts.append(svg_line(x.start, y(t), x.stop, y(t), "grid"))
        parts.append(svg_text(x.start - 7, y(t) + 4, y_text(t), "tick", "end"))
    x_ticks = frame.x_ticks or {
        t: (x_text or format_compact)(t) for t in round_ticks(x.low, x.high, 5)
    }
    parts += [svg_text(x(t), y.start + 17, text, "tick", "middle") for t, text in x_ticks.items()]
    middle = (x.start + x.stop) / 2
    parts.append(svg_text(middle, frame.height - 5, frame.x_label, "axis", "middle"))
    return parts


def format_compact(value: float) -> str:
    return f"{0.0 if abs(value) < 1e-12 else value:.3g}"


def format_power_of_ten(value: float) -> str:
    """``3`` -> ``1,000``: what a log axis says; large powers in short."""
    digits = round(value)
    return f"{10**digits:,}" if digits < 4 else f"{10 ** (digits % 3)}{' kMGT'[digits // 3]}"


def format_percent_or_missing(value: float | None) -> str:
    return "missing" if value is None else format_percent(value)


@dataclass(frozen=True)
class PublishedPair:
    """One row of a table: what was published, what was measured, and its interval."""

    name: str
    published: float
    measured: float
    low: float
    high: float
    has_warnings: bool = False  # drawn hollow


def draw_published_scatter(pairs: Sequence[PublishedPair], column: str, unit: str) -> str:
    """Equal axes, so that the diagonal means equal numbers."""
    format_value = format_percent if unit == "percent" else format_compact
    values = [v for p in pairs for v in (p.published, p.low, p.high, p.measured)]
    margin = 0.06 * (max(values) - min(values)) or 0.02 * abs(values[0]) or 0.02
    low, high = min(values) - margin, max(values) + margin
    if unit == "percent":
        low, high = max(0.0, low), min(1.0, high)
    frame = ChartFrame("published", "measured", width=340, height=310)
    x = LinearScale(low, high, 46, frame.width - 14)
    y = LinearScale(low, high, frame.height - 40, 12)
    parts = draw_axes(x, y, frame, format_value, format_value)
    parts.append(svg_line(x(low), y(low), x(high), y(high), "diagonal"))
    for p in pairs:
        css = f"dot {'hollow ' if p.has_warnings else ''}c0"
        tooltip = svg_tooltip(
            f"{p.name}: published {format_value(p.published)}, measured {format_value(p.measured)}"
        )
        whisker = svg_line(x(p.published), y(p.low), x(p.published), y(p.high), "whisker c0")
        marker = svg_element("circle", css=css, cx=x(p.published), cy=y(p.measured), r=4.5)
        parts.append(svg_element("g", tooltip, whisker, marker))
    description = "; ".join(
        f"{p.name} {format_value(p.published)}, {format_value(p.measured)}" for p in pairs[:40]
    )
    label = f"{column}: published against measured. {description}"
    return svg_root(frame.width, frame.height, label, *parts)
