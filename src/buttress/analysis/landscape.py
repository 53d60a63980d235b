"""Loss landscape around the trained weights, along filter-normalized directions.

Directions as in Li et al., arXiv:1712.09913; used to compare models in Tang et al., "Exploring the
Relationship between Architecture and Adversarially Robust Generalization", arXiv:2209.14105.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch

from buttress.analysis.core import ANALYSES, AnalysisResult, Count, PositiveFloat
from buttress.analysis.figures import Axes, Figure
from buttress.analysis.methods.loss_plane import (
    LossPlane,
    add_legend_above,
    draw_contours,
    draw_surface,
    log_levels,
    mean_rise,
    plot_titles,
    require_finite,
    split_figure,
    symmetric_grid,
)
from buttress.analysis.methods.weight_directions import (
    WeightStep,
    filter_weights,
    movable_weights,
    random_direction,
)
from buttress.analysis.subject import (
    AnalysisSubject,
    CostScope,
    SampleLoss,
    attack_sample,
    load_sample,
    sample_loss,
)
from buttress.analysis.uncertainty import SampleUnits, StoredSamples
from buttress.config import Spec
from buttress.engine.fast_model import FastModel
from buttress.engine.processes import map_in_processes
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode, model_device
from buttress.system.progress import fraction_callback

AdversarialMode = Literal["center", "each", "none"]


class DirectionalLosses(Spec):
    """One loss along random directions and over the plane of the first two."""

    center: float
    curves: LossPlane  # a row for each direction, along `steps`
    plane: LossPlane  # empty if there is one direction only
    rise: float  # at `LandscapeResult.rise_radius`: mean of directions and of both ways


class LandscapeResult(AnalysisResult):
    """The loss around trained weights; a step of 1 is as long as the weights, filter by filter."""

    steps: tuple[float, ...]
    rise_radius: float
    images: int
    threat: str
    adversarial_mode: AdversarialMode  # where the attacked images were made
    clean: DirectionalLosses
    adversarial: DirectionalLosses | None

    @staticmethod
    def plot(results: Mapping[str, LandscapeResult], figure: Figure) -> None:
        """All runs along random directions; below, each run over a plane: contours and a hill."""
        with_plane = {label: r for label, r in results.items() if r.clean.plane}
        if not with_plane:
            _draw_curves(results, figure.subplots())
            return
        rows = 3 if any(r.adversarial for r in with_plane.values()) else 2
        left, right = split_figure(figure, len(with_plane), rows)
        _draw_curves(results, left.subplots())
        kinds = {"clean": [r.clean for r in with_plane.values()]}
        if rows == 3:
            kinds["adversarial"] = [r.adversarial or r.clean for r in with_plane.values()]
        hills = log_levels([losses.plane for losses in kinds["clean"]])
        for row, (kind, row_losses) in enumerate(kinds.items()):
            levels = log_levels([losses.plane for losses in row_losses])
            for column, (title, result) in enumerate(
                zip(plot_titles(with_plane), with_plane.values(), strict=True)
            ):
                axes = right.add_subplot(rows, len(with_plane), row * len(with_plane) + column + 1)
                draw_contours(axes, result.steps, row_losses[column].plane, levels)
                axes.set_title(title if row == 0 else "", fontsize="small")
                axes.set_ylabel(kind if column == 0 else "", fontsize="small")
        for column, result in enumerate(with_plane.values()):
            place = (rows, len(with_plane), (rows - 1) * len(with_plane) + column + 1)
            draw_surface(right, place, result.steps, result.clean.plane, hills)
        right.suptitle(
            "over two directions: contours of loss, log10 of the clean loss", fontsize="small"
        )

    def summary(self) -> str:
        """Summarize the rise of the loss."""
        phrases = [_loss_phrase("the loss", self.clean)]
        if self.adversarial is not None:
            is_each = self.adversarial_mode == "each"
            where = "at each point" if is_each else "once, at the trained weights"
            phrases.append(_loss_phrase(f"that of images attacked {where},", self.adversarial))
        return (
            f"Weights moved by {self.rise_radius:g} of their length in a random direction take "
            f"{' and '.join(phrases)} (mean of {len(self.clean.curves)} directions both ways, "
            f"{self.images} training images)."
        )


def _draw_curves(results: Mapping[str, LandscapeResult], axes: Axes) -> None:
    """A line for each loss, the mean of its directions, with the span of them."""
    for number, (label, result) in enumerate(results.items()):
        for losses, style in ((result.clean, "-"), (result.adversarial, "--")):
            if losses is None:
                continue
            columns = list(zip(*losses.curves, strict=True))
            means = [sum(c) / len(c) for c in columns]
            name = f"{label} " * bool(label) + ("clean" if style == "-" else "adversarial")
            axes.plot(result.steps, means, style, color=f"C{number}", label=name)
            low, high = [min(c) for c in columns], [max(c) for c in columns]
            axes.fill_between(result.steps, low, high, color=f"C{number}", alpha=0.12)
    axes.set(ylabel="cross-entropy", yscale="log")
    axes.set_xlabel("along random directions, in lengths of the weights")
    add_legend_above(axes)


def landscape_cost(
    scope: CostScope,
    *,
    radius: float,
    points: int,
    directions: int,
    limit: int,
    adversarial_mode: AdversarialMode,
    steps: int,
) -> PassCount:
    """Cost: forward passes at each point; attacks at the center or at each point."""
    symmetric_grid(radius, points)
    count = points + (points - 1) * (directions - 1)
    count += (points - 1) ** 2 * (directions > 1)
    evaluations = count * (1 if adversarial_mode == "none" else 2)
    attacks = {"none": 0, "center": 1, "each": count}[adversarial_mode]
    return PassCount(limit * (evaluations + (2 + steps) * attacks), limit * steps * attacks)


def _loss_phrase(subject: str, losses: DirectionalLosses) -> str:
    return f"{subject} from {losses.center:.3g} to {losses.center + losses.rise:.3g}"


class LossPair(NamedTuple):
    """Clean and adversarial loss at one point."""

    clean: SampleLoss
    adversarial: SampleLoss | None


@ANALYSES.register(
    "landscape",
    paper="arXiv:1712.09913",
    tags=("weights", "attack"),
    cost=landscape_cost,
    example_args={"points": 5, "directions": 2, "limit": 4, "steps": 2},
)
def landscape(
    subject: AnalysisSubject,
    *,
    radius: PositiveFloat = 1.0,
    points: Count = 21,
    directions: Count = 3,
    limit: Count = 64,
    adversarial_mode: AdversarialMode = "center",
    steps: Count = 10,
) -> LandscapeResult:
    r"""The loss along random directions from the trained weights, and over the plane of two.

    .. math:: F(a, b) = L(w + a d_1 + b d_2), \quad
        d \leftarrow d\, \frac{\|w\|}{\|d\|} \text{ for each filter}

    on training images without augmentation, BatchNorm statistics as trained; biases and scales
    stay. ``adversarial_mode``: images attacked by PGD with ``steps`` steps once, at the trained
    weights (``center``), again at each point (``each``, as the weights see it in adversarial
    training; many times the cost), or not at all (``none``). One direction gives a curve and no
    plane.
    """
    grid = symmetric_grid(radius, points)
    sample = load_sample(subject.model, subject.load_training_images(limit))
    model = FastModel.keep_parameters(subject.model, sample.x[:2]).module
    subject, weights = replace(subject, model=model), filter_weights(model)
    fixed = attack_sample(subject, sample, steps) if adversarial_mode == "center" else None
    axes = [random_direction(weights, "landscape", subject.seed, k) for k in range(directions)]
    with eval_mode(model), movable_weights(weights) as move:

        def evaluate_at(*way: WeightStep) -> LossPair:
            move(*way)
            each = adversarial_mode == "each"
            attacked = attack_sample(subject, sample, steps) if each else fixed
            adversarial = None if attacked is None else sample_loss(model, attacked)
            return LossPair(sample_loss(model, sample), adversarial)

        losses_by_point = _evaluate_points(subject, evaluate_at, axes, grid)
    kinds: dict[str, DirectionalLosses] = {}
    samples: dict[str, StoredSamples] = {}
    for kind in LossPair._fields:
        losses = {place: getattr(pair, kind) for place, pair in losses_by_point.items()}
        if losses[()] is not None:
            kinds[kind] = _directional_losses(losses, grid, directions)
            samples |= _loss_samples(kind, losses, grid, directions, SampleUnits(sample.ids))
    return LandscapeResult(
        steps=grid,
        rise_radius=grid[points // 2 + _rise_offset(points)],
        images=len(sample),
        threat=str(subject.threat),
        adversarial_mode=adversarial_mode,
        clean=kinds["clean"],
        adversarial=kinds.get("adversarial"),
        samples=samples,
    )


GridPoint = tuple[tuple[int, float], ...]  # (number of the direction, how far), 0 left out


def _evaluate_points(
    subject: AnalysisSubject,
    evaluate_at: Callable[..., LossPair],
    axes: list[Any],
    grid: tuple[float, ...],
) -> dict[GridPoint, LossPair]:
    """Evaluate every point once; a point on an axis belongs to the curve and to the plane."""
    points = [_grid_point((k, a)) for k in range(len(axes)) for a in grid]
    points += [_grid_point((0, a), (1, b)) for a in grid for b in grid if len(axes) > 1]
    unique_points = list(dict.fromkeys(points))
    task = subject.progress.add_task("points around the weights", len(unique_points))
    pairs = map_in_processes(
        lambda place: evaluate_at(*((length, axes[k]) for k, length in place)),
        unique_points,
        model_device(subject.model),
        fraction_callback(task, len(unique_points)),
    )
    task.close()
    return dict(zip(unique_points, pairs, strict=True))


def _grid_point(*steps: tuple[int, float]) -> GridPoint:
    return tuple((k, length) for k, length in steps if length)


def _directional_losses(
    losses: Mapping[GridPoint, SampleLoss], grid: tuple[float, ...], directions: int
) -> DirectionalLosses:
    values = {place: loss.mean for place, loss in losses.items()}
    require_finite(list(values.values()), "weights")
    curves = tuple(tuple(values[_grid_point((k, a))] for a in grid) for k in range(directions))
    plane: LossPlane = ()
    if directions > 1:
        plane = tuple(tuple(values[_grid_point((0, a), (1, b))] for b in grid) for a in grid)
    rises = [mean_rise(curve, _rise_offset(len(grid))) for curve in curves]
    rise = sum(rises) / len(rises)
    return DirectionalLosses(center=values[()], curves=curves, plane=plane, rise=rise)


def _loss_samples(
    kind: str,
    losses: Mapping[GridPoint, SampleLoss],
    grid: tuple[float, ...],
    directions: int,
    units: SampleUnits,
) -> dict[str, StoredSamples]:
    """The loss of each image at the center, and its rise."""
    center, offset = losses[()].per_image, _rise_offset(len(grid))
    ends = [grid[len(grid) // 2 + side * offset] for side in (-1, 1)]
    around = [losses[_grid_point((k, a))].per_image for k in range(directions) for a in ends]
    rise = torch.stack(around).mean(0) - center
    return {f"{kind}.center": units.store(center), f"{kind}.rise": units.store(rise)}


def _rise_offset(points: int) -> int:
    """How many points from the center the rise is read: half way to the border."""
    return max(1, points // 4)
