"""Sharpness of the minimum: curvature and the highest loss near the trained weights.

In units of filters, so that rescaling layers without changing the function does not change the
result. Plain curvature, which depends on that scale (Dinh et al., arXiv:1703.04933), is beside
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import MinLen
from torch import nn

from buttress.analysis.core import (
    ANALYSES,
    AnalysisResult,
    Count,
    Natural,
    PositiveFloat,
    Predictor,
)
from buttress.analysis.figures import Figure
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
    CostScope,
    ImageSample,
    SampleLoss,
    attack_sample,
    load_sample,
    sample_loss,
)
from buttress.analysis.uncertainty import SampleUnits, StoredSamples, UncertaintyNote
from buttress.config import Spec
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode
from buttress.system.progress import ProgressTask
from buttress.system.rng import make_generator

LOWEST_ONLY = UncertaintyNote(
    pattern="*.lowest",
    varies_by="none",
    reason="the eigenvector of the lowest eigenvalue is not kept",
)
ASCENT_STEPS = 4  # steps of gradient ascent: the first to the border, the others half as long
PASSES_PER_HESSIAN_PRODUCT = 2  # backward passes that a product with a Hessian costs, about


class HessianSpectrum(Spec):
    """Extreme eigenvalues and trace of a Hessian."""

    largest: float
    lowest: float
    residual: float  # an eigenvalue is within this of `largest`
    num_products: int
    trace: float | None
    trace_error: float | None  # standard error


class LossRise(Spec):
    """How much the loss rises if each filter may move by ``radius`` of its length."""

    radius: float
    random_mean: float
    random_max: float  # the most of the random directions
    ascent_max: float  # the most that gradient ascent found

    @property
    def largest(self) -> float:
        return max(self.random_max, self.ascent_max)


class SharpnessMeasures(Spec):
    """Sharpness of one loss."""

    loss: float
    hessian: HessianSpectrum  # of all parameters
    filter_hessian: HessianSpectrum  # in units of filters
    rises: tuple[LossRise, ...]


class SharpnessResult(AnalysisResult):
    """Sharpness at the trained weights, for clean images and for images attacked there."""

    images: int
    threat: str
    directions: int
    parameters: int
    clean: SharpnessMeasures
    adversarial: SharpnessMeasures | None

    @staticmethod
    def plot(results: Mapping[str, SharpnessResult], figure: Figure) -> None:
        """Plot the loss rise against the radius, and the largest eigenvalues."""
        left, right = figure.subplots(1, 2)
        labels, values = [], []
        for number, (label, result) in enumerate(results.items()):
            for figures, style in ((result.clean, "-"), (result.adversarial, "--")):
                if figures is None:
                    continue
                name = f"{label} " * bool(label) + ("clean" if style == "-" else "adversarial")
                radii = [r.radius for r in figures.rises]
                most = [r.largest for r in figures.rises]
                mean = [r.random_mean for r in figures.rises]
                color = f"C{number}"
                left.plot(radii, most, style, marker="o", ms=3, color=color, label=name)
                left.plot(radii, mean, ":", color=color, alpha=0.5 if style == "-" else 1.0)
                labels.append(name)
                values.append(figures.filter_hessian.largest)
        left.set(
            xlabel="radius, in lengths of the filters", ylabel="rise of the loss", xscale="log"
        )
        left.set_yscale("symlog", linthresh=1e-3)
        left.set_title("highest found (o), mean of random directions (:)", fontsize="medium")
        left.legend(fontsize="x-small")
        bars = right.barh(range(len(values)), values)
        right.bar_label(bars, [f"{v:.3g}" for v in values], fontsize="x-small")
        right.set_yticks(range(len(labels)), labels, fontsize="x-small")
        right.invert_yaxis()
        right.set_title("largest eigenvalue of the Hessian, in units of filters", fontsize="medium")

    def summary(self) -> str:
        """Summarize the largest eigenvalue and the loss rise at the middle radius."""
        sentences = [_sharpness_sentence("The clean loss", self.clean)]
        if self.adversarial is not None:
            sentences.append(
                _sharpness_sentence(
                    f"The loss of images attacked in {self.threat}", self.adversarial
                )
            )
        return " ".join(sentences)


def sharpness_cost(
    scope: CostScope,
    *,
    limit: int,
    steps: int,
    lanczos_steps: int,
    probes: int,
    directions: int,
    radii: tuple[float, ...],
) -> PassCount:
    """Cost: products with two Hessians, and the points in each ball, for one loss or two."""
    kinds = 2 if steps else 1
    products = 2 * (lanczos_steps + probes)
    products += 2  # of each image alone, for the uncertainty of the eigenvalues
    backward = products * PASSES_PER_HESSIAN_PRODUCT + ASCENT_STEPS * len(radii)
    forward = 1 + (directions + ASCENT_STEPS) * len(radii)
    gradients = limit * (kinds * backward + steps)
    return PassCount(kinds * limit * forward + gradients, gradients)


def _sharpness_sentence(what: str, figures: SharpnessMeasures) -> str:
    rise = figures.rises[len(figures.rises) // 2]
    return (
        f"{what} is {figures.loss:.3g}; it rises by up to {rise.largest:.3g} where each "
        f"filter may move by {rise.radius:g} of its length. The largest eigenvalue is "
        f"{figures.filter_hessian.largest:.3g} in units of filters, {figures.hessian.largest:.3g} "
        "plain."
    )


@ANALYSES.register(
    "sharpness",
    paper="arXiv:1703.04933",
    tags=("weights", "attack"),
    cost=sharpness_cost,
    example_args={"limit": 4, "steps": 2, "lanczos_steps": 3, "directions": 2, "radii": (0.01,)},
    uncertainty=(LOWEST_ONLY,),
    predictors=(
        Predictor("sharpness (Hessian)", ("clean", "hessian", "largest")),
        Predictor(
            "sharpness (in filters)", ("clean", "filter_hessian", "largest"), also_initial=True
        ),
        Predictor(
            "rise of the loss nearby", ("clean", "rises", -1, "ascent_max"), also_initial=True
        ),
    ),
)
def sharpness(
    subject: AnalysisSubject,
    *,
    limit: Count = 64,
    steps: Natural = 10,
    lanczos_steps: Count = 20,
    probes: Natural = 0,
    directions: Count = 8,
    radii: Annotated[tuple[PositiveFloat, ...], MinLen(1)] = (0.002, 0.005, 0.01, 0.02),
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
    radii = tuple(sorted(radii))
    sample = load_sample(subject.model, subject.load_training_images(limit))
    kinds = {"clean": sample}
    if steps:
        kinds["adversarial"] = attack_sample(subject, sample, steps)
    task = subject.progress.add_task("sharpness", len(kinds) * (2 + len(radii)))
    search = SharpnessSearch(subject.model, subject.seed, lanczos_steps, probes, directions, radii)
    try:
        with eval_mode(subject.model):
            measured = {kind: search.measure(images, task) for kind, images in kinds.items()}
    finally:
        task.close()
    return SharpnessResult(
        images=len(sample),
        threat=str(subject.threat),
        directions=directions,
        parameters=sum(p.numel() for p in subject.model.parameters()),
        clean=measured["clean"][0],
        adversarial=measured["adversarial"][0] if steps else None,
        samples={
            f"{kind}.{path}": figure
            for kind, (_, figures) in measured.items()
            for path, figure in figures.items()
        },
    )


Samples = dict[str, StoredSamples]


@dataclass(frozen=True)
class SharpnessSearch:
    """How the sharpness of one loss is measured."""

    model: nn.Module
    seed: int
    lanczos_steps: int
    probes: int
    directions: int
    radii: tuple[float, ...]

    def measure(self, sample: ImageSample, task: ProgressTask) -> tuple[SharpnessMeasures, Samples]:
        """Eigenvalues and rises, and the samples of them."""
        samples: Samples = {}
        spectra: dict[str, HessianSpectrum] = {}
        for name in ("hessian", "filter_hessian"):
            spectra[name], figures = self._spectrum(sample, relative=name == "filter_hessian")
            samples |= {f"{name}.{path}": figure for path, figure in figures.items()}
            task.advance()
        rises = []
        for number, (rise, figures) in enumerate(self._rises(sample, task)):
            rises.append(rise)
            samples |= {f"rises[{number}].{path}": figure for path, figure in figures.items()}
        loss = sample_loss(self.model, sample)
        samples["loss"] = SampleUnits(sample.ids).store(loss.per_image)
        return SharpnessMeasures(loss=loss.mean, rises=tuple(rises), **spectra), samples

    def _spectrum(self, sample: ImageSample, *, relative: bool) -> tuple[HessianSpectrum, Samples]:
        all_parameters = {n: p for n, p in self.model.named_parameters() if p.is_floating_point()}
        weights = filter_weights(self.model) if relative else all_parameters
        hessian = LossHessian(self.model, sample, weights, relative=relative)
        rng = make_generator("sharpness", self.seed)
        start = torch.randn(hessian.size, generator=rng).to(next(iter(weights.values())))
        ends = lanczos(hessian.hessian_vector_product, start, steps=self.lanczos_steps)
        curvatures = hessian.image_curvatures(ends.vector)
        samples = {"largest": SampleUnits(sample.ids).store(curvatures)}
        trace = None
        if self.probes:
            product = hessian.hessian_vector_product
            trace = hutchinson(product, hessian.size, self.probes, rng)
            samples["trace"] = SampleUnits(range(self.probes), "draw").store(trace.per_probe)
        spectrum = HessianSpectrum(
            largest=ends.largest,
            lowest=ends.lowest,
            residual=ends.residual,
            num_products=ends.num_products,
            trace=trace and trace.value,
            trace_error=trace and trace.error,
        )
        return spectrum, samples

    def _rises(self, sample: ImageSample, task: ProgressTask) -> Iterator[tuple[LossRise, Samples]]:
        """The rise in each ball, and that of each image."""
        model, weights = self.model, filter_weights(self.model)
        units = SampleUnits(sample.ids)
        random_directions = [
            random_direction(weights, "sharpness", self.seed, k) for k in range(self.directions)
        ]
        with movable_weights(weights) as move:
            move()
            center = sample_loss(model, sample)
            for radius in self.radii:
                random = []
                for direction in random_directions:
                    move((radius, direction))
                    random.append(sample_loss(model, sample))
                ascent = _gradient_ascent(model, sample, weights, move, radius)
                best = max(random, key=lambda loss: loss.mean)
                mean = torch.stack([loss.per_image for loss in random]).mean(0)
                rises = [loss.mean - center.mean for loss in random]
                yield (
                    LossRise(
                        radius=radius,
                        random_mean=sum(rises) / len(rises),
                        random_max=max(rises),
                        ascent_max=ascent.mean - center.mean,
                    ),
                    {
                        "random_mean": units.store(mean - center.per_image),
                        "random_max": units.store(best.per_image - center.per_image),
                        "ascent_max": units.store(ascent.per_image - center.per_image),
                    },
                )
                task.advance()


def _gradient_ascent(
    model: nn.Module,
    sample: ImageSample,
    weights: Mapping[str, nn.Parameter],
    move: WeightMove,
    radius: float,
) -> SampleLoss:
    """The highest loss on a few steps of gradient ascent, each filter with steps of one length."""
    move()
    center = {name: p.detach().clone() for name, p in weights.items()}
    offset = {name: torch.zeros_like(w) for name, w in center.items()}
    losses = []
    for step in range(ASCENT_STEPS):
        gradient = LossHessian(model, sample, weights).gradient()
        direction = normalize_filters(gradient, center)
        length = radius if step == 0 else radius / 2
        offset = clip_to_filter_ball(
            {name: offset[name] + length * direction[name] for name in center}, center, radius
        )
        move((1.0, offset))
        losses.append(sample_loss(model, sample))
    return max(losses, key=lambda loss: loss.mean)
