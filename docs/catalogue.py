"""The architectures as two tables and a picture, counted from the registry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import EngFormatter
from matplotlib.transforms import Bbox

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from buttress.models import ModelDescription

COLORS = {"cnn": "#1b6ca8", "transformer": "#c2570c", "hybrid": "#2f7d4f"}
NEAR = 14.0  # pixels between points that share a label
# Where a label may stand beside its point, in points, the best place first.
PLACES = [
    (x * far, y * far)
    for far in (5, 9, 14, 20, 28, 38, 50)
    for x, y in (
        (1, 0),
        (-1, 0),
        (0, 1),
        (0, -1),
        (0.8, 0.8),
        (-0.8, 0.8),
        (0.8, -0.8),
        (-0.8, -0.8),
    )
]


def published_table(models: Sequence[ModelDescription]) -> str:
    """Ours beside what the papers print, at the same number of classes and image size."""
    lines = [
        "| name | category | ours | published | difference | MFLOPs | paper |",
        "| --- | --- | --: | --: | --: | --: | --- |",
    ]
    for model in models:
        ours, printed, difference = f"{model.parameters / 1e6:.6f}", "", ""
        if (figure := model.published) is not None:
            is_as_is = (figure.num_classes, figure.image_size) == (10, 32)
            size = f"{figure.image_size}x{figure.image_size}"
            where = "" if is_as_is else f" ({figure.num_classes} classes, {size})"
            ours = f"{figure.parameters / 1e6:.6f}{where}"
            printed, difference = str(figure), f"{100 * figure.relative_difference:+.2f}%"
        cells = (f"`{model.name}`", model.category, ours, printed, difference, flops(model))
        lines.append(f"| {' | '.join(cells)} | {link(model.paper)} |")
    return "\n".join(lines) + "\n"


def small_table(models: Sequence[ModelDescription]) -> str:
    lines = [
        "| name | category | parameters | MFLOPs | what it is |",
        "| --- | --- | --: | --: | --- |",
    ]
    for model in models:
        cells = (f"`{model.name}`", model.category, f"{model.parameters:,}", flops(model))
        lines.append(f"| {' | '.join(cells)} | {model.about} |")
    return "\n".join(lines) + "\n"


def flops(model: ModelDescription) -> str:
    millions = 2 * model.macs / 1e6
    return f"{millions:,.0f}" if millions >= 100 else f"{millions:.1f}"


def link(paper: str) -> str:
    return f"[{paper}](https://arxiv.org/abs/{paper.removeprefix('arXiv:')})"


def draw(models: Sequence[ModelDescription], path: Path) -> None:
    """Parameters against FLOPs; the published networks by name, the minis as rings."""
    with mpl.rc_context({"svg.hashsalt": "buttress", "font.size": 9}):
        figure = Figure(figsize=(9, 6.6), layout="constrained", facecolor="white")
        FigureCanvasSVG(figure)
        ax = figure.add_subplot()
        for category, color in COLORS.items():
            big = [m for m in models if (m.category, m.size) == (category, "published")]
            mini = [m for m in models if (m.category, m.size) == (category, "mini")]
            ax.scatter(*positions(big), s=22, color=color, label=category, zorder=3)
            ax.scatter(*positions(mini), s=14, facecolor="none", edgecolor=color, linewidth=0.8)
        ax.scatter([], [], s=14, facecolor="none", edgecolor="#555555", label="mini variants")
        ax.set(xscale="log", yscale="log")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(EngFormatter())
        ax.set_xlabel("parameters, 10 classes")
        ax.set_ylabel("FLOPs of one 32x32 image, forward")
        ax.grid(True, which="major", color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.legend(loc="lower right", frameon=False)
        figure.draw_without_rendering()  # gives every point its place
        name_points(ax, [m for m in models if m.size == "published"])
        figure.savefig(path, format="svg", metadata={"Date": None})


def positions(models: Sequence[ModelDescription]) -> tuple[list[int], list[int]]:
    return [m.parameters for m in models], [2 * m.macs for m in models]


def name_points(ax: Axes, models: Sequence[ModelDescription]) -> None:
    """Writes each name in the nearest place that covers no other name and no point."""
    points = ax.transData.transform(list(zip(*positions(models), strict=True))).tolist()
    taken = [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in points]
    for text, model in grouped(models, points):
        for place in PLACES:
            label = write_label(ax, text, model, place)
            label.get_window_extent()  # puts the text in its place; its own extent has a line too
            box = Text.get_window_extent(label).padded(1)
            is_inside = ax.bbox.containsx(box.x1) and ax.bbox.containsx(box.x0)
            if is_inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            label.remove()
        else:  # no room anywhere: better crowded than nameless
            write_label(ax, text, model, PLACES[0])


def grouped(
    models: Sequence[ModelDescription], points: Sequence[tuple[float, float]]
) -> list[tuple[str, ModelDescription]]:
    """One label for the members of a family that lie on top of each other, from the top down."""
    groups: list[list[int]] = []
    for i in sorted(range(len(models)), key=lambda i: -points[i][1]):
        for group in groups:
            is_near = math.dist(points[i], points[group[0]]) < NEAR
            if is_near and family(models[i]) == family(models[group[0]]):
                group.append(i)
                break
        else:
            groups.append([i])
    named = []
    for group in groups:
        names = sorted(models[i].name for i in group)
        many = f"{family(models[group[0]])}, {len(names)} variants"
        named.append((", ".join(names) if len(names) < 3 else many, models[group[0]]))
    return named


def family(model: ModelDescription) -> str:
    return next(tag for tag in model.tags if tag not in (model.category, model.size))


def write_label(
    ax: Axes, text: str, model: ModelDescription, place: tuple[float, float]
) -> Annotation:
    dx, dy = place
    line = {"arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
    return ax.annotate(
        text,
        (model.parameters, 2 * model.macs),
        place,
        textcoords="offset points",
        ha="left" if dx > 0 else "right" if dx < 0 else "center",
        va="bottom" if dy > 0 else "top" if dy < 0 else "center",
        fontsize=7,
        color=COLORS[model.category],
        arrowprops=line if abs(dx) + abs(dy) > 10 else None,
    )
