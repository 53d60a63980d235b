"""Figures: data in, one SVG text out. A colour is a number; the style sheet knows its shade."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from buttress.report.svg import (
    Scale,
    element,
    figure,
    line,
    path,
    shorten,
    text,
    tip,
)
from buttress.report.svg import ticks as round_ticks
from buttress.report.words import percent, span, tenths

COLOURS = 8
DOTS = 12  # a longer line goes without dots


@dataclass(frozen=True)
class Bar:
    """A share with its interval; ``value`` None is a missing result."""

    name: str
    value: float | None
    detail: str = ""  # said, not drawn
    low: float = 0.0
    high: float = 0.0
    colour: int = 0
    hollow: bool = False
    mark: float | None = None  # a second value, drawn as a tick


@dataclass(frozen=True)
class Series:
    """A line; with ``low`` and ``high``, also a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    colour: int = 0
    dashed: bool = False


@dataclass(frozen=True)
class Point:
    name: str
    x: float
    y: float
    low: float
    high: float
    colour: int | None = None  # None: grey
    hollow: bool = False


@dataclass(frozen=True)
class Frame:
    """The size of a drawing and what its axes say."""

    x_label: str
    y_label: str
    is_share: bool = True  # the y axis is percent, from 0 to 100
    width: float = 480
    height: float = 300


def bars(items: Sequence[Bar], label: str, width: float = 340, names: float = 118) -> str:
    """Horizontal bars with interval whiskers, one line each, names on the left."""
    x = Scale(0, 1, names + 8, width - 44)
    bottom = 6 + 26 * len(items)
    parts = [line(x(t), 4, x(t), bottom, "grid") for t in (0, 0.5, 1)]
    parts += [text(x(t), bottom + 15, f"{t:.0%}", "tick", "middle") for t in (0, 0.5, 1)]
    for index, item in enumerate(items):
        parts.append(bar(item, x, 6 + 26 * index, names))
    said = "; ".join(f"{full(b)} {spoken(b.value)}" for b in items)
    return figure(width, bottom + 22, f"{label}. {said}", *parts)


def bar(item: Bar, x: Scale, top: float, names: float) -> str:
    name = text(names, top + 15, shorten(item.name, int(names / 6.4)), "name", "end")
    if item.value is None:
        missing = text(x(0) + 5, top + 15, "missing", "missing")
        return element("g", tip(f"{full(item)}: missing"), name, missing)
    shape = "bar hollow" if item.hollow else "bar"
    middle = top + 11.0
    parts = [
        tip(f"{full(item)}: {tenths(item.value)}% (95% interval {span(item.low, item.high)})"),
        name,
        element(
            "rect",
            css=f"{shape} c{item.colour % COLOURS}",
            x=x(0),
            y=top + 3.0,
            width=max(x(item.value) - x(0), 0.75),
            height=16,
            rx=2,
        ),
        line(x(item.low), middle, x(item.high), middle, "whisker"),
        line(x(item.low), middle - 3, x(item.low), middle + 3, "cap"),
        line(x(item.high), middle - 3, x(item.high), middle + 3, "cap"),
        text(x.stop + 40, top + 15, tenths(item.value), "value", "end"),
    ]
    if item.mark is not None:
        parts.insert(-1, line(x(item.mark), top + 1, x(item.mark), top + 21, "mark-tick"))
    return element("g", *parts)


def full(item: Bar) -> str:
    return f"{item.name} ({item.detail})" if item.detail else item.name


def lines(series: Sequence[Series], frame: Frame, label: str) -> str:
    """Lines over a common x axis, with bands where intervals are known."""
    xs = [v for s in series for v in s.x]
    low, high = y_range(series, frame)
    x = Scale(min(xs, default=0), max(xs, default=1), 46, frame.width - 14)
    y = Scale(low, high, frame.height - 40, 12)
    parts = axes(x, y, frame)
    for s in series:
        colour = f"c{s.colour % COLOURS}"
        if s.low and s.high:
            edge = [*zip(s.x, s.high, strict=True), *reversed(list(zip(s.x, s.low, strict=True)))]
            parts.append(path([(x(a), y(b)) for a, b in edge], f"band {colour}"))
    for s in series:
        colour = f"c{s.colour % COLOURS}"
        points = [(x(a), y(b)) for a, b in zip(s.x, s.y, strict=True)]
        style = "line dashed" if s.dashed else "line"
        parts.append(path(points, f"{style} {colour}", tip(s.name)))
        parts += [dot(s, i, at, frame) for i, at in enumerate(points) if len(points) <= DOTS]
    return figure(frame.width, frame.height, label, *parts)


def y_range(series: Sequence[Series], frame: Frame) -> tuple[float, float]:
    if frame.is_share:
        return 0.0, 1.0
    values = [v for s in series for v in s.y if math.isfinite(v)]
    return min([0.0, *values]), max(values, default=1.0) or 1.0


def dot(s: Series, index: int, at: tuple[float, float], frame: Frame) -> str:
    value = s.y[index]
    if not math.isfinite(value):
        return ""
    shown = f"{tenths(value)}%" if frame.is_share else f"{value:.4g}"
    if s.low and s.high:
        shown += f" (95% interval {span(s.low[index], s.high[index])})"
    css = f"dot {'hollow ' if s.dashed else ''}c{s.colour % COLOURS}"
    said = tip(f"{s.name}, {frame.x_label} {s.x[index]:.4g}: {shown}")
    return element("circle", said, css=css, cx=at[0], cy=at[1], r=3)


def scatter(points: Sequence[Point], frame: Frame, label: str) -> str:
    """Points with vertical interval whiskers; both axes are shares, x as wide as the data."""
    xs = [p.x for p in points]
    margin = max(0.02, 0.12 * (max(xs) - min(xs)))
    x = Scale(max(0, min(xs) - margin), min(1, max(xs) + margin), 46, frame.width - 14)
    y = Scale(0, 1, frame.height - 40, 12)
    parts = axes(x, y, frame, percent)
    for p in points:
        colour = "grey" if p.colour is None else f"c{p.colour % COLOURS}"
        css = f"dot {'hollow ' if p.hollow else ''}{colour}"
        said = tip(f"{p.name}: {frame.x_label} {tenths(p.x)}%, {frame.y_label} {tenths(p.y)}%")
        whisker = line(x(p.x), y(p.low), x(p.x), y(p.high), f"whisker {colour}")
        parts.append(
            element("g", said, whisker, element("circle", css=css, cx=x(p.x), cy=y(p.y), r=5))
        )
    return figure(frame.width, frame.height, label, *parts)


def histogram(edges: Sequence[float], counts: Mapping[str, Sequence[int]], frame: Frame) -> str:
    """Steps over bins with a log axis of counts; the first entry is filled."""
    top = max((c for values in counts.values() for c in values), default=1)
    x = Scale(edges[0], edges[-1], 46, frame.width - 14)
    # The axis starts below one: a bin of one weight must not look empty.
    y = Scale(-0.4, math.ceil(math.log10(max(top, 2))), frame.height - 40, 12)
    parts = axes(x, y, frame, compact, power)
    for index, (name, values) in enumerate(counts.items()):
        outline = [(x(edges[0]), y.start)]
        for k, count in enumerate(values):
            height = y(math.log10(count)) if count else y.start
            outline += [(x(edges[k]), height), (x(edges[k + 1]), height)]
        outline.append((x(edges[-1]), y.start))
        css = "area grey" if index == 0 else f"line thin c{(index - 1) % COLOURS}"
        parts.append(path(outline, css, tip(name)))
    said = f"Weights by size, {edges[0]:.3g} to {edges[-1]:.3g}, counts on a log axis"
    return figure(frame.width, frame.height, said, *parts)


def axes(
    x: Scale,
    y: Scale,
    frame: Frame,
    x_text: Callable[[float], str] | None = None,
    y_text: Callable[[float], str] | None = None,
) -> list[str]:
    """Grid, tick texts and names of both axes."""
    y_text = y_text or (percent if frame.is_share else compact)
    is_log = y_text is power
    parts = []
    for t in range(int(y.high) + 1) if is_log else round_ticks(y.low, y.high, 5):
        parts.append(line(x.start, y(t), x.stop, y(t), "grid"))
        parts.append(text(x.start - 7, y(t) + 4, y_text(t), "tick", "end"))
    for t in round_ticks(x.low, x.high, 5):
        parts.append(text(x(t), y.start + 17, (x_text or compact)(t), "tick", "middle"))
    middle = (x.start + x.stop) / 2
    parts.append(text(middle, frame.height - 5, frame.x_label, "axis", "middle"))
    return parts


def compact(value: float) -> str:
    return f"{0.0 if abs(value) < 1e-12 else value:.3g}"


def power(value: float) -> str:
    """``3`` -> ``1,000``: what a log axis says; large powers in short."""
    digits = round(value)
    return f"{10**digits:,}" if digits < 4 else f"{10 ** (digits % 3)}{' kMGT'[digits // 3]}"


def spoken(value: float | None) -> str:
    return "missing" if value is None else percent(value)
