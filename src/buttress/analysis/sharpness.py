"""How sharp the minimum is: curvature at the trained weights and the highest loss near them.

In units of filters, so that a network with its layers rescaled, which computes the same, has the
same figures. Plain curvature, which depends on that scale (Dinh et al., arXiv:1703.04933), is
beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from buttress.analysis.arguments import whole
from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes
from buttress.analysis.curvature import Curvature
from buttress.analysis.lanczos import hutchinson, lanczos
from buttress.analysis.sample import Sample, attacked, mean_loss, sample_of
from buttress.analysis.subject import Subject
from buttress.analysis.weights import (
    Move,
    clipped_to_ball,
    filter_normalised,
    filter_weights,
    movable,
    random_direction,
)
from buttress.attacks.freeze import frozen
from buttress.errors import UserError
from buttress.progress import Task
from buttress.spec import Spec
from buttress.streams import generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ASCENT = 4  # steps of gradient ascent: the first to the border, the others half as long
HESSIAN_PASSES = 2  # backward passes that a product with a Hessian costs, about


class Spectrum(Spec):
    """The ends of a Hessian's spectrum."""

    largest: float
    lowest: float
    residual: float  # an eigenvalue is within this of `largest`
    products: int
    trace: float | None
    trace_error: float | None  # standard error


class Rise(Spec):
    """How much the loss rises if each filter may move by ``radius`` of its length."""

    radius: float
    random_mean: float
    random: float  # the most of the random directions
    ascent: float  # the most that gradient ascent found

    @property
    def most(self) -> float:
        return max(self.random, self.ascent)


class Figures(Spec):
    """Sharpness of one loss."""

    loss: float
    hessian: Spectrum  # of all parameters
    relative: Spectrum  # in units of filters
    rises: tuple[Rise, ...]


class Sharpness(Spec):
    """Sharpness at the trained weights, for clean images and for images attacked there."""

    images: int
    threat: str
    directions: int
    parameters: int
    clean: Figures
    attacked: Figures | None


def plot_sharpness(results: Mapping[str, Sharpness], figure: Figure) -> None:
    """The rise against the radius, and the largest eigenvalues."""
    left, right = figure.subplots(1, 2)
    labels, values = [], []
    for number, (label, result) in enumerate(results.items()):
        for figures, style in ((result.clean, "-"), (result.attacked, "--")):
            if figures is None:
                continue
            name = f"{label} " * bool(label) + ("clean" if style == "-" else "attacked")
            radii = [r.radius for r in figures.rises]
            most, mean = ([getattr(r, k) for r in figures.rises] for k in ("most", "random_mean"))
            colour = f"C{number}"
            left.plot(radii, most, style, marker="o", ms=3, color=colour, label=name)
            left.plot(radii, mean, ":", color=colour, alpha=0.5 if style == "-" else 1.0)
            labels.append(name)
            values.append(figures.relative.largest)
    left.set(xlabel="radius, in lengths of the filters", ylabel="rise of the loss", xscale="log")
    left.set_yscale("symlog", linthresh=1e-3)
    left.set_title("highest found (o), mean of random directions (:)", fontsize="medium")
    left.legend(fontsize="x-small")
    bars = right.barh(range(len(values)), values)
    right.bar_label(bars, [f"{v:.3g}" for v in values], fontsize="x-small")
    right.set_yticks(range(len(labels)), labels, fontsize="x-small")
    right.invert_yaxis()
    right.set_title("largest eigenvalue of the Hessian, in units of filters", fontsize="medium")


def cost_sharpness(
    subject: Subject,
    *,
    limit: int,
    steps: int,
    lanczos_steps: int,
    probes: int,
    directions: int,
    radii: tuple[float, ...],
) -> Passes:
    """Products with two Hessians, and the points in each ball, for one loss or two."""
    _check(limit, steps, lanczos_steps, probes, directions, radii)
    kinds = 2 if steps else 1
    products = 2 * (lanczos_steps + probes)
    backward = products * HESSIAN_PASSES + ASCENT * len(radii)
    forward = 1 + (directions + ASCENT) * len(radii)
    return Passes(kinds * limit * forward, limit * (kinds * backward + steps))


def says_sharpness(result: Sharpness) -> str:
    """The largest eigenvalue and the rise in the middle ball."""
    said = [_says("The clean loss", result.clean)]
    if result.attacked is not None:
        said.append(_says(f"The loss of images attacked in {result.threat}", result.attacked))
    return " ".join(said)


def _says(what: str, figures: Figures) -> str:
    rise = figures.rises[len(figures.rises) // 2]
    return (
        f"{what} is {figures.loss:.3g}; where each filter may move by {rise.radius:g} of its "
        f"length, a rise of {rise.most:.3g} was found. The largest eigenvalue is "
        f"{figures.relative.largest:.3g} in units of filters, {figures.hessian.largest:.3g} plain."
    )


@ANALYSES.register(
    "sharpness",
    paper="arXiv:1703.04933",
    tags=("weights", "attack"),
    result=Sharpness,
    plot=plot_sharpness,
    cost=cost_sharpness,
    says=says_sharpness,
)
def sharpness(
    subject: Subject,
    *,
    limit: int = 64,
    steps: int = 10,
    lanczos_steps: int = 20,
    probes: int = 0,
    directions: int = 8,
    radii: tuple[float, ...] = (0.002, 0.005, 0.01, 0.02),
) -> Sharpness:
    r"""Curvature at the trained weights, and the highest loss found in balls around them.

    .. math:: \max_{\|v_f\| \le \rho \|w_f\|\ \forall f} L(w + v) - L(w), \quad
        \lambda_{\max}(H), \quad \lambda_{\max}(D H D),\ D = \mathrm{diag}(\|w_f\|)

    f runs over filters. The rise is what ``directions`` random directions and gradient ascent find,
    so a lower bound of the maximum; eigenvalues are by Lanczos, with a bound of their error;
    ``probes`` random vectors estimate the traces. On training images without augmentation,
    BatchNorm statistics as trained, clean and attacked by PGD with ``steps`` steps at the trained
    weights; ``steps=0`` leaves the attack out.
    """
    radii = _check(limit, steps, lanczos_steps, probes, directions, radii)
    sample = sample_of(subject.model, subject.training_images(limit))
    weights = filter_weights(subject.model)
    kinds = [sample, *([attacked(subject, sample, steps)] if steps else [])]
    task = subject.progress.task("sharpness", len(kinds) * (2 + len(radii)))
    found = []
    try:
        with frozen(subject.model):
            for kind in kinds:
                ends = [
                    _spectrum(subject, kind, relative, (lanczos_steps, probes), task)
                    for relative in (False, True)
                ]
                rises = _rises(subject, kind, weights, (radii, directions), task)
                loss = mean_loss(subject.model, kind)
                found.append(
                    Figures(loss=loss, hessian=ends[0], relative=ends[1], rises=tuple(rises))
                )
    finally:
        task.close()
    return Sharpness(
        images=len(sample),
        threat=str(subject.threat),
        directions=directions,
        parameters=sum(p.numel() for p in subject.model.parameters()),
        clean=found[0],
        attacked=found[1] if steps else None,
    )


def _spectrum(
    subject: Subject, sample: Sample, relative: bool, effort: tuple[int, int], task: Task
) -> Spectrum:
    model, (steps, probes) = subject.model, effort
    every = {n: p for n, p in model.named_parameters() if p.is_floating_point()}
    weights = filter_weights(model) if relative else every
    curved = Curvature(model, sample, weights, relative=relative)
    source = generator("sharpness", subject.seed)
    start = torch.randn(curved.size, generator=source).to(next(iter(weights.values())))
    ends = lanczos(curved.product, start, steps=steps)
    trace = hutchinson(curved.product, curved.size, probes, source) if probes else None
    task.advance()
    return Spectrum(
        **ends._asdict(),
        trace=None if trace is None else trace.value,
        trace_error=None if trace is None else trace.error,
    )


def _rises(
    subject: Subject,
    sample: Sample,
    weights: Mapping[str, nn.Parameter],
    effort: tuple[tuple[float, ...], int],
    task: Task,
) -> list[Rise]:
    """The rise in each ball."""
    model, (radii, directions) = subject.model, effort
    ways = [random_direction(weights, "sharpness", subject.seed, k) for k in range(directions)]
    found = []
    with movable(weights) as move:
        move()
        centre = mean_loss(model, sample)
        for radius in radii:
            random = []
            for way in ways:
                move((radius, way))
                random.append(mean_loss(model, sample) - centre)
            climbed = _climb(model, sample, weights, move, radius) - centre
            found.append(
                Rise(
                    radius=radius,
                    random_mean=sum(random) / len(random),
                    random=max(random),
                    ascent=climbed,
                )
            )
            task.advance()
    return found


def _climb(
    model: nn.Module,
    sample: Sample,
    weights: Mapping[str, nn.Parameter],
    move: Move,
    radius: float,
) -> float:
    """The highest loss on a few steps of gradient ascent, each filter with steps of one length."""
    move()
    centre = {name: p.detach().clone() for name, p in weights.items()}
    offset = {name: torch.zeros_like(w) for name, w in centre.items()}
    best = -float("inf")
    for step in range(ASCENT):
        slope = Curvature(model, sample, weights).gradient()
        way = filter_normalised(slope, centre)
        length = radius if step == 0 else radius / 2
        offset = clipped_to_ball(
            {name: offset[name] + length * way[name] for name in centre}, centre, radius
        )
        move((1.0, offset))
        best = max(best, mean_loss(model, sample))
    return best


def _check(
    limit: int, steps: int, lanczos_steps: int, probes: int, directions: int, radii: Any
) -> tuple[float, ...]:
    whole(1, limit=limit, lanczos_steps=lanczos_steps, directions=directions)
    whole(0, steps=steps, probes=probes)
    values = list(radii) if isinstance(radii, (list, tuple)) else [radii]
    if not values or not all(isinstance(r, (int, float)) and 0 < r < 10 for r in values):
        raise UserError(f"`radii` must be numbers above 0 like [0.01, 0.05], but got {radii!r}")
    return tuple(sorted(float(r) for r in values))
