"""Grid of points around a center, and plots of a loss over it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from buttress.analysis.figures import Axes, Figure, SubFigure
from buttress.errors import UserError

LossPlane = tuple[tuple[float, ...], ...]  # [i][j]: at step i of the first axis, j of the other
NUM_LEVELS = 12


def symmetric_grid(radius: float, points: int) -> tuple[float, ...]:
    """Points from -radius to radius with one exactly at 0."""
    if points < 3 or points % 2 == 0:
        raise UserError(
            "`points` must be an odd integer of at least 3 (the center is one of "
            f"them), but got points={points!r}"
        )
    half = points // 2
    return tuple(radius * k / half for k in range(-half, half + 1))


def require_finite(values: Sequence[float], location: str) -> None:
    if not all(math.isfinite(v) for v in values):
        raise UserError(f"the loss is not finite at some {location}; use a smaller `radius`")


def draw_contours(
    axes: Axes, steps: Sequence[float], plane: LossPlane, levels: Sequence[float]
) -> None:
    """Lines of equal loss, filled; all planes of one picture have the same levels."""
    from matplotlib.colors import LogNorm

    heights = _transpose_and_clip(plane, levels)
    axes.contourf(
        steps, steps, heights, levels=levels, norm=LogNorm(), cmap="viridis"
    ).set_edgecolor("face")
    lines = axes.contour(steps, steps, heights, levels=levels, colors="white", linewidths=0.4)
    axes.clabel(lines, list(levels)[1:-1:3], fmt="%.2g", fontsize=6)
    axes.plot(0, 0, marker="+", color="red")
    axes.set_aspect("equal")
    axes.tick_params(labelsize=7)


def draw_surface(
    figure: SubFigure,
    subplot_position: tuple[int, int, int],
    steps: Sequence[float],
    plane: LossPlane,
    levels: Sequence[float],
) -> None:
    """Draw the plane as a surface on a log scale."""
    import numpy as np

    axes: Any = figure.add_subplot(*subplot_position, projection="3d")
    first, second = np.meshgrid(steps, steps)
    heights = np.log10(_transpose_and_clip(plane, levels))
    low, high = np.log10([levels[0], levels[-1]])
    # As pixels: each face as a vector would make the file large.
    faces = {"rcount": len(steps), "ccount": len(steps), "linewidth": 0, "rasterized": True}
    axes.plot_surface(first, second, heights, cmap="viridis", vmin=low, vmax=high, **faces)
    axes.set_zlim(low, high)
    axes.tick_params(labelsize=6, pad=-2)


def add_legend_above(axes: Axes) -> None:
    axes.legend(fontsize="x-small", loc="lower center", bbox_to_anchor=(0.5, 1.0))


def split_figure(figure: Figure, columns: int, rows: int) -> tuple[SubFigure, SubFigure]:
    """Room for curves on the left, and for pictures of planes on the right."""
    figure.set_size_inches(max(9.0, 2.6 * columns + 3.5), 2.6 * rows + 0.6)
    ratios = (3.5, max(2.6 * columns, 4.0))
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=ratios)[0]
    return left, right


def log_levels(planes: Sequence[LossPlane]) -> list[float]:
    """Levels from the lowest to the highest loss of all planes, evenly on a log scale."""
    values = [v for plane in planes for row in plane for v in row]
    low, high = max(min(values), 1e-3), max(*values, 2e-3)
    high = max(high, 1.01 * low) * 1.0001
    return [low * (high / low) ** (k / NUM_LEVELS) for k in range(NUM_LEVELS + 1)]


def _transpose_and_clip(plane: LossPlane, levels: Sequence[float]) -> list[list[float]]:
    """Transpose for plotting (second axis first) and clip below the lowest level."""
    return [[max(v, levels[0]) for v in column] for column in zip(*plane, strict=True)]


def mean_rise(curve: Sequence[float], offset: int) -> float:
    """How much higher than the center a curve is ``offset`` points from it, mean of both sides."""
    middle = len(curve) // 2
    return (curve[middle - offset] + curve[middle + offset]) / 2 - curve[middle]


def plot_titles(results: Mapping[str, object]) -> list[str]:
    """Titles that fit above a small picture."""
    return [label.replace(" / ", "\n") for label in results]
