"""Sharpness of the minimum: curvature and the highest loss near the trained weights.

In units of filters, so that rescaling layers without changing the function does not change the
result. Plain curvature, which depends on that scale (Dinh et al., arXiv:1703.04933), is beside
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from buttress.analysis.core import ANALYSES, require_integers
from buttress.analysis.cost import PassCount
from buttress.analysis.methods.hessian import LossHessian
from buttress.analysis.methods.lanczos import hutchinson, lanczos
from buttress.analysis.methods.weight_directions import (
    WeightMove,
    clip_to_filter_ball,
    filter_weights,
    movable_weights,
    normalize_filters,
    random_direction,
)
from buttress.analysis.subject import (
    AnalysisSubject,
    ImageSample,
    attack_sample,
    load_sample,
    mean_loss,
)
from buttress.config import Spec
from buttress.errors import UserError
from buttress.models.eval_mode import eval_mode
from buttress.system.progress import ProgressTask
from buttress.system.rng import make_generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ASCENT_STEPS = 4  # steps of gradient ascent: the first to the border, the others half as long
PASSES_PER_HESSIAN_PRODUCT = 2  # backward passes that a product with a Hessian costs, about


class HessianSpectrum(Spec):
    """Extreme eigenvalues and trace of a Hessian."""

    largest: float
    lowest: float
    residual: float  # an eigenvalue is within this of `largest`
    products: int
    trace: float | None
    trace_error: float | None  # standard error


class LossRise(Spec):
    """How much the loss rises if each filter may move by ``radius`` of its length."""

    radius: float
    random_mean: float
    random: float  # the most of the random directions
    ascent: float  # the most that gradient ascent found

    @property
    def largest(self) -> float:
        return max(self.random, self.ascent)


class SharpnessMeasures(Spec):
    """Sharpness of one loss."""

    loss: float
    hessian: HessianSpectrum  # of all parameters
    relative: HessianSpectrum  # in units of filters
    rises: tuple[LossRise, ...]


class SharpnessResult(Spec):
    """Sharpness at the trained weights, for clean images and for images attacked there."""

    images: int
    threat: str
    directions: int
    parameters: int
    clean: SharpnessMeasures
    attacked: SharpnessMeasures | None


def plot_sharpness(results: Mapping[str, SharpnessResult], figure: Figure) -> None:
    """Plot the loss rise against the radius, and the largest eigenvalues."""
    left, right = figure.subplots(1, 2)
    labels, values = [], []
    for number, (label, result) in enumerate(results.items()):
        for figures, style in ((result.clean, "-"), (result.attacked, "--")):
            if figures is None:
                continue
            name = f"{label} " * bool(label) + ("clean" if style == "-" else "attacked")
            radii = [r.radius for r in figures.rises]
            most = [r.largest for r in figures.rises]
            mean = [r.random_mean for r in figures.rises]
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


def sharpness_cost(
    subject: AnalysisSubject,
    *,
    limit: int,
    steps: int,
    lanczos_steps: int,
    probes: int,
    directions: int,
    radii: tuple[float, ...],
) -> PassCount:
    """Cost: products with two Hessians, and the points in each ball, for one loss or two."""
    _check_arguments(limit, steps, lanczos_steps, probes, directions, radii)
    kinds = 2 if steps else 1
    products = 2 * (lanczos_steps + probes)
    backward = products * PASSES_PER_HESSIAN_PRODUCT + ASCENT_STEPS * len(radii)
    forward = 1 + (directions + ASCENT_STEPS) * len(radii)
    return PassCount(kinds * limit * forward, limit * (kinds * backward + steps))


def says_sharpness(result: SharpnessResult) -> str:
    """Summarize the largest eigenvalue and the loss rise at the middle radius."""
    sentences = [_sharpness_sentence("The clean loss", result.clean)]
    if result.attacked is not None:
        sentences.append(
            _sharpness_sentence(f"The loss of images attacked in {result.threat}", result.attacked)
        )
    return " ".join(sentences)


def _sharpness_sentence(what: str, figures: SharpnessMeasures) -> str:
    rise = figures.rises[len(figures.rises) // 2]
    return (
        f"{what} is {figures.loss:.3g}; it rises by up to {rise.largest:.3g} where each "
        f"filter may move by {rise.radius:g} of its length. The largest eigenvalue is "
        f"{figures.relative.largest:.3g} in units of filters, {figures.hessian.largest:.3g} "
        "plain."
    )


@ANALYSES.register(
    "sharpness",
    paper="arXiv:1703.04933",
    tags=("weights", "attack"),
    result=SharpnessResult,
    plot=plot_sharpness,
    cost=sharpness_cost,
    says=says_sharpness,
)
def sharpness(
    subject: AnalysisSubject,
    *,
    limit: int = 64,
    steps: int = 10,
    lanczos_steps: int = 20,
    probes: int = 0,
    directions: int = 8,
    radii: tuple[float, ...] = (0.002, 0.005, 0.01, 0.02),
) -> SharpnessResult:
    r"""Curvature at the trained weights, and the highest loss found in balls around them.

    .. math:: \max_{\|v_f\| \le \rho \|w_f\|\ \forall f} L(w + v) - L(w), \quad
        \lambda_{\max}(H), \quad \lambda_{\max}(D H D),\ D = \mathrm{diag}(\|w_f\|)

    f runs over filters. The rise is what ``directions`` random directions and gradient ascent find,
    so a lower bound of the maximum; eigenvalues are by Lanczos, with a bound of their error;
    ``probes`` random vectors estimate the traces. On training images without augmentation,
    BatchNorm statistics as trained, clean and attacked by PGD with ``steps`` steps at the trained
    weights; ``steps=0`` leaves the attack out.
    """
    radii = _check_arguments(limit, steps, lanczos_steps, probes, directions, radii)
    sample = load_sample(subject.model, subject.load_training_images(limit))
    weights = filter_weights(subject.model)
    samples = [sample, *([attack_sample(subject, sample, steps)] if steps else [])]
    task = subject.progress.add_task("sharpness", len(samples) * (2 + len(radii)))
    measures = []
    try:
        with eval_mode(subject.model):
            for kind in samples:
                ends = [
                    _hessian_spectrum(subject, kind, relative, (lanczos_steps, probes), task)
                    for relative in (False, True)
                ]
                rises = _loss_rises(subject, kind, weights, (radii, directions), task)
                loss = mean_loss(subject.model, kind)
                measures.append(
                    SharpnessMeasures(
                        loss=loss, hessian=ends[0], relative=ends[1], rises=tuple(rises)
                    )
                )
    finally:
        task.close()
    return SharpnessResult(
        images=len(sample),
        threat=str(subject.threat),
        directions=directions,
        parameters=sum(p.numel() for p in subject.model.parameters()),
        clean=measures[0],
        attacked=measures[1] if steps else None,
    )


def _hessian_spectrum(
    subject: AnalysisSubject,
    sample: ImageSample,
    relative: bool,
    lanczos_steps_and_probes: tuple[int, int],
    task: ProgressTask,
) -> HessianSpectrum:
    model, (steps, probes) = subject.model, lanczos_steps_and_probes
    all_parameters = {n: p for n, p in model.named_parameters() if p.is_floating_point()}
    weights = filter_weights(model) if relative else all_parameters
    hessian = LossHessian(model, sample, weights, relative=relative)
    rng = make_generator("sharpness", subject.seed)
    start = torch.randn(hessian.size, generator=rng).to(next(iter(weights.values())))
    ends = lanczos(hessian.hessian_vector_product, start, steps=steps)
    trace = (
        hutchinson(hessian.hessian_vector_product, hessian.size, probes, rng) if probes else None
    )
    task.advance()
    return HessianSpectrum(
        **ends._asdict(),
        trace=None if trace is None else trace.value,
        trace_error=None if trace is None else trace.error,
    )


def _loss_rises(
    subject: AnalysisSubject,
    sample: ImageSample,
    weights: Mapping[str, nn.Parameter],
    radii_and_directions: tuple[tuple[float, ...], int],
    task: ProgressTask,
) -> list[LossRise]:
    """The rise in each ball."""
    model, (radii, directions) = subject.model, radii_and_directions
    random_directions = [
        random_direction(weights, "sharpness", subject.seed, k) for k in range(directions)
    ]
    rises = []
    with movable_weights(weights) as move:
        move()
        center_loss = mean_loss(model, sample)
        for radius in radii:
            random = []
            for direction in random_directions:
                move((radius, direction))
                random.append(mean_loss(model, sample) - center_loss)
            ascent_rise = _gradient_ascent(model, sample, weights, move, radius) - center_loss
            rises.append(
                LossRise(
                    radius=radius,
                    random_mean=sum(random) / len(random),
                    random=max(random),
                    ascent=ascent_rise,
                )
            )
            task.advance()
    return rises


def _gradient_ascent(
    model: nn.Module,
    sample: ImageSample,
    weights: Mapping[str, nn.Parameter],
    move: WeightMove,
    radius: float,
) -> float:
    """The highest loss on a few steps of gradient ascent, each filter with steps of one length."""
    move()
    center = {name: p.detach().clone() for name, p in weights.items()}
    offset = {name: torch.zeros_like(w) for name, w in center.items()}
    best = -float("inf")
    for step in range(ASCENT_STEPS):
        gradient = LossHessian(model, sample, weights).gradient()
        direction = normalize_filters(gradient, center)
        length = radius if step == 0 else radius / 2
        offset = clip_to_filter_ball(
            {name: offset[name] + length * direction[name] for name in center}, center, radius
        )
        move((1.0, offset))
        best = max(best, mean_loss(model, sample))
    return best


def _check_arguments(
    limit: int, steps: int, lanczos_steps: int, probes: int, directions: int, radii: Any
) -> tuple[float, ...]:
    require_integers(1, limit=limit, lanczos_steps=lanczos_steps, directions=directions)
    require_integers(0, steps=steps, probes=probes)
    values = list(radii) if isinstance(radii, (list, tuple)) else [radii]
    if not values or not all(isinstance(r, (int, float)) and 0 < r < 10 for r in values):
        raise UserError(f"`radii` must be numbers above 0 like [0.01, 0.05], but got {radii!r}")
    return tuple(sorted(float(r) for r in values))
