"""The loss around the trained weights: how far they can be moved before it rises.

Directions as in Li et al., arXiv:1712.09913; networks compared by it in Tang et al., "Exploring the
Relationship between Architecture and Adversarially Robust Generalization", arXiv:2209.14105.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from buttress.analysis.arguments import whole
from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes
from buttress.analysis.plane import (
    Rows,
    check_finite,
    draw_contours,
    draw_hill,
    halves,
    legend_above,
    levels_of,
    names_of,
    rise_along,
    steps_of,
)
from buttress.analysis.ready import ready
from buttress.analysis.sample import attacked, mean_loss, sample_of
from buttress.analysis.subject import Subject
from buttress.analysis.weights import Step, filter_weights, movable, random_direction
from buttress.attacks.freeze import frozen
from buttress.errors import UserError
from buttress.spec import Spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Adversarial = Literal["centre", "each", "none"]


class Losses(Spec):
    """One loss along random directions and over the plane of the first two."""

    centre: float
    curves: Rows  # a row for each direction, along `steps`
    plane: Rows  # empty if there is one direction only
    rise: float  # at `Landscape.at`: mean of directions and of both ways


class Landscape(Spec):
    """The loss around trained weights; a step of 1 is as long as the weights, filter by filter."""

    steps: tuple[float, ...]
    at: float
    images: int
    threat: str
    adversarial: Adversarial  # where the attacked images were made
    clean: Losses
    attacked: Losses | None


def plot_landscape(results: Mapping[str, Landscape], figure: Figure) -> None:
    """All runs along random directions; below, each run over a plane: contours and a hill."""
    flat = {label: r for label, r in results.items() if r.clean.plane}
    if not flat:
        _draw_curves(results, figure.subplots())
        return
    rows = 3 if any(r.attacked for r in flat.values()) else 2
    left, right = halves(figure, len(flat), rows)
    _draw_curves(results, left.subplots())
    kinds = {"clean": [r.clean for r in flat.values()]}
    if rows == 3:
        kinds["attacked"] = [r.attacked or r.clean for r in flat.values()]
    hills = levels_of([losses.plane for losses in kinds["clean"]])
    for row, (kind, found) in enumerate(kinds.items()):
        levels = levels_of([losses.plane for losses in found])
        for column, (title, result) in enumerate(zip(names_of(flat), flat.values(), strict=True)):
            axes = right.add_subplot(rows, len(flat), row * len(flat) + column + 1)
            draw_contours(axes, result.steps, found[column].plane, levels)
            axes.set_title(title if row == 0 else "", fontsize="small")
            axes.set_ylabel(kind if column == 0 else "", fontsize="small")
    for column, result in enumerate(flat.values()):
        place = (rows, len(flat), (rows - 1) * len(flat) + column + 1)
        draw_hill(right, place, result.steps, result.clean.plane, hills)
    right.suptitle(
        "over two directions: contours of loss, log10 of the clean loss", fontsize="small"
    )


def _draw_curves(results: Mapping[str, Landscape], axes: Axes) -> None:
    """A line for each loss, the mean of its directions, with the span of them."""
    for number, (label, result) in enumerate(results.items()):
        for losses, style in ((result.clean, "-"), (result.attacked, "--")):
            if losses is None:
                continue
            columns = list(zip(*losses.curves, strict=True))
            means = [sum(c) / len(c) for c in columns]
            name = f"{label} " * bool(label) + ("clean" if style == "-" else "attacked")
            axes.plot(result.steps, means, style, color=f"C{number}", label=name)
            low, high = [min(c) for c in columns], [max(c) for c in columns]
            axes.fill_between(result.steps, low, high, color=f"C{number}", alpha=0.12)
    axes.set(ylabel="cross-entropy", yscale="log")
    axes.set_xlabel("along random directions, in lengths of the weights")
    legend_above(axes)


def cost_landscape(
    subject: Subject,
    *,
    radius: float,
    points: int,
    directions: int,
    limit: int,
    adversarial: Adversarial,
    steps: int,
) -> Passes:
    """A look at each point; attacks at the centre or at each."""
    steps_of(radius, points)
    _check(directions, limit, adversarial, steps)
    count = points + (points - 1) * (directions - 1)
    count += (points - 1) ** 2 * (directions > 1)
    looks = count * (1 if adversarial == "none" else 2)
    attacks = {"none": 0, "centre": 1, "each": count}[adversarial]
    return Passes(limit * (looks + 2 * attacks), limit * steps * attacks)


def says_landscape(result: Landscape) -> str:
    """How much the loss rises on the way."""
    said = [_says("the loss", result.clean)]
    if result.attacked is not None:
        where = "at each point" if result.adversarial == "each" else "once, at the trained weights"
        said.append(_says(f"that of images attacked {where},", result.attacked))
    return (
        f"Weights moved by {result.at:g} of their length in a random direction take "
        f"{' and '.join(said)} (mean of {len(result.clean.curves)} directions both ways, "
        f"{result.images} training images)."
    )


def _says(what: str, losses: Losses) -> str:
    return f"{what} from {losses.centre:.3g} to {losses.centre + losses.rise:.3g}"


class Pair(NamedTuple):
    """The two losses at one point."""

    clean: float
    attacked: float | None


@ANALYSES.register(
    "landscape",
    paper="arXiv:1712.09913",
    tags=("weights", "attack"),
    result=Landscape,
    plot=plot_landscape,
    cost=cost_landscape,
    says=says_landscape,
)
def landscape(
    subject: Subject,
    *,
    radius: float = 1.0,
    points: int = 21,
    directions: int = 3,
    limit: int = 64,
    adversarial: Adversarial = "centre",
    steps: int = 10,
) -> Landscape:
    r"""The loss along random directions from the trained weights, and over the plane of two.

    .. math:: F(a, b) = L(w + a d_1 + b d_2), \quad
        d \leftarrow d\, \frac{\|w\|}{\|d\|} \text{ for each filter}

    on training images without augmentation, BatchNorm statistics as trained; biases and scales
    stay. ``adversarial``: images attacked by PGD with ``steps`` steps once, at the trained weights
    (``centre``), anew at each point (``each``, as the weights see it in adversarial training; many
    times the cost), or not at all (``none``). One direction gives a curve and no plane.
    """
    grid = steps_of(radius, points)
    _check(directions, limit, adversarial, steps)
    sample = sample_of(subject.model, subject.training_images(limit))
    model = ready(subject.model, sample.x[:2])
    subject, weights = replace(subject, model=model), filter_weights(model)
    fixed = attacked(subject, sample, steps) if adversarial == "centre" else None
    axes = [random_direction(weights, "landscape", subject.seed, k) for k in range(directions)]
    with frozen(model), movable(weights) as move:

        def look(*way: Step) -> Pair:
            move(*way)
            there = attacked(subject, sample, steps) if adversarial == "each" else fixed
            return Pair(
                mean_loss(model, sample), None if there is None else mean_loss(model, there)
            )

        seen = _walk(subject, look, axes, grid)
    clean = _losses(seen, grid, directions, lambda pair: pair.clean)
    worse = _losses(seen, grid, directions, lambda pair: pair.attacked)
    assert clean is not None
    return Landscape(
        steps=grid,
        at=grid[points // 2 + _half(points)],
        images=len(sample),
        threat=str(subject.threat),
        adversarial=adversarial,
        clean=clean,
        attacked=worse,
    )


Place = tuple[tuple[int, float], ...]  # (number of the direction, how far), 0 left out


def _walk(
    subject: Subject, look: Callable[..., Pair], axes: list[Any], grid: tuple[float, ...]
) -> dict[Place, Pair]:
    """Looks at every point once; a point on an axis belongs to the curve and to the plane."""
    wanted = [_place((k, a)) for k in range(len(axes)) for a in grid]
    wanted += [_place((0, a), (1, b)) for a in grid for b in grid if len(axes) > 1]
    places = list(dict.fromkeys(wanted))
    task = subject.progress.task("points around the weights", len(places))
    seen = {}
    try:
        for place in places:
            seen[place] = look(*((length, axes[k]) for k, length in place))
            task.advance()
    finally:
        task.close()
    return seen


def _place(*steps: tuple[int, float]) -> Place:
    return tuple((k, length) for k, length in steps if length)


def _losses(
    seen: Mapping[Place, Pair],
    grid: tuple[float, ...],
    directions: int,
    of: Callable[[Pair], float | None],
) -> Losses | None:
    values = {place: v for place, pair in seen.items() if (v := of(pair)) is not None}
    if not values:
        return None
    check_finite(list(values.values()), "weights")
    curves = tuple(tuple(values[_place((k, a))] for a in grid) for k in range(directions))
    plane: Rows = ()
    if directions > 1:
        plane = tuple(tuple(values[_place((0, a), (1, b))] for b in grid) for a in grid)
    rises = [rise_along(curve, _half(len(grid))) for curve in curves]
    return Losses(
        centre=values[()], curves=curves, plane=plane, rise=sum(rises) / len(rises)
    )  # fmt: skip


def _half(points: int) -> int:
    """How many points from the centre the rise is read: half way to the border."""
    return max(1, points // 4)


def _check(directions: int, limit: int, adversarial: str, steps: int) -> None:
    whole(1, directions=directions, limit=limit, steps=steps)
    if adversarial not in get_args(Adversarial):
        known = ", ".join(get_args(Adversarial))
        raise UserError(f"`adversarial` must be one of {known}, but got {adversarial!r}")
