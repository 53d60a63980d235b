"""Lipschitz constants: empirical ones per block, beside upper bounds from the weights.

Measured as in RobustWRN (Huang et al., arXiv:2110.03825, equation 3 and figure 5); bounded by the
spectral norms of the layers and by its theorems for Gaussian weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from buttress.analysis.core import ANALYSES, AnalysisResult, Predictor
from buttress.analysis.cost import attack_passes
from buttress.analysis.figures import Axes, Figure
from buttress.analysis.methods.lipschitz_bound import lipschitz_upper_bounds
from buttress.analysis.methods.lipschitz_ratio import (
    LOGITS,
    NORM_PAIRS,
    OutputHooks,
    RatioAscent,
    RatioMeasurements,
    create_measurement,
    measure_ratios,
)
from buttress.analysis.methods.spectral_norms import (
    MAX_ITERATIONS,
    LayerNorms,
    SpectralNorms,
    layer_norms,
)
from buttress.analysis.subject import AnalysisSubject, CostScope
from buttress.analysis.uncertainty import WEIGHTS_ONLY, SampleUnits, StoredSamples, UncertaintyNote
from buttress.attacks.core import create_attack
from buttress.config import Spec
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode, to_model_device
from buttress.models.parts import NetworkBlock, network_blocks


class LipschitzRatio(Spec):
    """Empirical constants in one pair of norms; means over images but for the last."""

    at_attack_result: float  # at the point the attack returned, as published
    attack_max: float  # the largest along the attack
    ascent_max: float  # the largest along gradient ascent on the ratio
    largest: float  # of all points and images: the constant is at least this


class LipschitzBlock(Spec):
    """From the image to the output of a block, or to the logits."""

    name: str
    stage: int | None  # None for the logits
    l1_linf: LipschitzRatio  # output in L1, input in Linf
    l2_l2: LipschitzRatio
    bound_log10: float | None  # in L2 over L2: the constant is at most this
    product_log10: float | None  # of the norms of all layers up to here; no bound with branches
    gaussian_log10: float | None  # the same of the theorems' figures


class LipschitzResult(AnalysisResult):
    """Empirical Lipschitz constants and bounds of one model."""

    attack: str
    threat: str
    images: int
    num_perturbed: int  # images that the attack moved; the others do not count at its result
    blocks: tuple[LipschitzBlock, ...]
    layers: tuple[LayerNorms, ...]
    bound_unavailable: str  # why the logits have no upper bound; empty where they have one
    weight_sigma: float | None = None  # root mean square of the weights of all linear layers

    @property
    def logits(self) -> LipschitzBlock:
        return self.blocks[-1]

    @staticmethod
    def plot(results: Mapping[str, LipschitzResult], figure: Figure) -> None:
        """Plot empirical constants by block, constant and bound in L2, and layer norms."""
        published, bounded, layers = figure.subplots(1, 3)
        for number, (label, result) in enumerate(results.items()):
            _draw_result(result, label, f"C{number}", (published, bounded, layers))
        published.set(ylabel="L1 over Linf", title="under attack (-), ratio ascent (:)")
        bounded.set(ylabel="L2 over L2", title="largest found (-), upper bound (- -)")
        layers.set(ylabel="norm in L2", title="layers (dots), Gaussian figure (line)")
        for axes in (published, bounded):
            axes.set(yscale="log", xlabel="block, then logits")
            axes.xaxis.get_major_locator().set_params(integer=True)
        layers.set(yscale="log", xlabel="layer")
        if any(results):
            figure.legend(fontsize="small", loc="outside lower center", ncols=min(4, len(results)))

    def summary(self) -> str:
        """Summarize the empirical constants and the upper bound."""
        logits = self.logits
        published, l2 = logits.l1_linf, logits.l2_l2
        text = (
            f"Under {self.attack} in {self.threat} the logits move by "
            f"{published.at_attack_result:.3g} (L1) per unit of Linf, mean of "
            f"{self.num_perturbed} images; ascent on the ratio finds {published.ascent_max:.3g}. "
            f"In L2 the constant is at least {l2.largest:.3g}"
        )
        if logits.bound_log10 is None:
            return f"{text}; no upper bound: {self.bound_unavailable}."
        return f"{text} and at most 10^{logits.bound_log10:.1f}, from the norms of the layers."

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Table of empirical constants and bounds per block; the last four are logarithms."""
        header = [
            "up to", "L1/Linf attack", "L1/Linf ascent", "L2/L2 largest", "log10 of it",
            "bound", "product of norms", "Gaussian weights",
        ]  # fmt: skip

        def log(value: float | None) -> str:
            return "-" if value is None else f"{value:.2f}"

        rows = []
        for block in self.blocks:
            largest = block.l2_l2.largest
            values = [block.l1_linf.at_attack_result, block.l1_linf.ascent_max, largest]
            logs = [block.bound_log10, block.product_log10, block.gaussian_log10]
            measured = log(math.log10(largest) if largest > 0 else None)
            rows.append([block.name, *(f"{v:.4g}" for v in values), measured, *map(log, logs)])
        return header, rows


def _draw_result(
    result: LipschitzResult, label: str, color: str, axes: tuple[Axes, Axes, Axes]
) -> None:
    steps = list(range(1, len(result.blocks) + 1))
    published, bounded, layers = axes
    ratios = [p.l1_linf for p in result.blocks]
    published.plot(
        steps, [r.at_attack_result for r in ratios], color=color, marker="o", ms=3, label=label
    )
    published.plot(steps, [r.ascent_max for r in ratios], color=color, ls=":")
    bounded.plot(steps, [p.l2_l2.largest for p in result.blocks], color=color, marker="o", ms=3)
    limits = [_power_of_ten(p.bound_log10) for p in result.blocks]
    bounded.plot(steps, limits, color=color, ls="--")
    norms = [layer.spectral for layer in result.layers if layer.gaussian is not None]
    layers.plot(norms, color=color, ls="", marker=".")
    theory = [layer.gaussian for layer in result.layers if layer.gaussian is not None]
    layers.plot(theory, color=color, lw=0.8, alpha=0.6)


def _power_of_ten(log: float | None) -> float:
    return float("nan") if log is None or log > 300 else 10.0**log


def lipschitz_cost(
    scope: CostScope,
    *,
    attack: str,
    args: Mapping[str, Any] | None,
    limit: int,
    steps: int,
    radii: tuple[float, ...],
) -> PassCount:
    """Cost: the attack and two ascents, plus a forward pass with block outputs per point.

    A round of the iterations for all norms, with and without BatchNorm, is two passes of one image.
    """
    images = min(limit, scope.num_images)
    total = attack_passes(create_attack(attack, **(args or {})), scope, images)
    for _ in NORM_PAIRS:
        total += attack_passes(RatioAscent(steps=steps, radii=tuple(radii)), scope, images)
    return total + PassCount(total.forward + 2 * MAX_ITERATIONS, 2 * MAX_ITERATIONS)


RATIO_FIELDS = ("at_attack_result", "attack_max", "ascent_max")
LARGEST_ONLY = UncertaintyNote(
    pattern="*.largest",
    varies_by="none",
    reason="it is the largest of all images: a lower bound, which fewer images only lower",
)


@ANALYSES.register(
    "lipschitz",
    paper="arXiv:2110.03825",
    tags=("attack", "weights"),
    cost=lipschitz_cost,
    example_args={"limit": 4, "steps": 2, "radii": (1.0,), "args": {"steps": 2}},
    uncertainty=(LARGEST_ONLY, WEIGHTS_ONLY),
    predictors=(
        Predictor("Lipschitz L1/Linf", ("blocks", -1, "l1_linf", "attack_max"), True, True),
        Predictor("Lipschitz L2/L2", ("blocks", -1, "l2_l2", "ascent_max"), uses_attack=True),
        Predictor(
            "product of layer norms (log)", ("layers", -1, "product_log10"), also_initial=True
        ),
        Predictor("Gaussian bound (log)", ("blocks", -1, "gaussian_log10")),
    ),
)
def lipschitz(
    subject: AnalysisSubject,
    *,
    attack: str = "pgd",
    args: Mapping[str, Any] | None = None,
    limit: int = 64,
    steps: int = 20,
    radii: tuple[float, ...] = (1.0, 0.1),
) -> LipschitzResult:
    r"""Empirical Lipschitz constants of logits and blocks under attack, and upper bounds.

    .. math:: \frac1n \sum_i \max_{x' \in B_\epsilon(x_i)}
        \frac{\|f(x_i) - f(x')\|_1}{\|x_i - x'\|_\infty}

    (equation 3), with f up to each block and up to the logits; also in L2 over L2, the norm in
    which the bounds hold. ``steps`` and ``radii`` belong to the ascent on the ratio.

    Departure from the published code: it takes the last point of PGD and adds 1e-6 to each
    pixel's difference; here x' is the attack's best point, and an image that did not move is left
    out and counted. The maximum over x' that the formula asks for is reported beside it.
    """
    blocks = {part.name: part for part in network_blocks(subject.model)}
    outputs = OutputHooks(subject.model, {name: part.module for name, part in blocks.items()})
    measurement = create_measurement(subject, create_attack(attack, **(args or {})), steps, radii)
    data = subject.first_images(limit)
    ratios = measure_ratios(subject, measurement, outputs, data)
    x = to_model_device(subject.model, subject.first_images(1).images)
    norms = SpectralNorms(subject.model, x)
    with eval_mode(subject.model):
        bounds, reason = lipschitz_upper_bounds(subject.model, x, norms, outputs.outputs(x))
        layers = layer_norms(subject.model, x, norms)
    return LipschitzResult(
        attack=attack,
        threat=str(subject.threat),
        images=len(data),
        num_perturbed=int((ratios[LOGITS].at_attack_result[0] > 0).sum()),
        blocks=tuple(
            _lipschitz_block(name, block_ratios, blocks.get(name), bounds, layers)
            for name, block_ratios in ratios.items()
        ),
        layers=layers,
        bound_unavailable=reason,
        weight_sigma=_weight_sigma(subject.model),
        samples={
            f"blocks[{number}].{pair}.{field}": figure
            for number, block_ratios in enumerate(ratios.values())
            for pair, field, figure in _stored_ratios(block_ratios, SampleUnits(data.ids))
        },
    )


def _weight_sigma(model: nn.Module) -> float:
    """The deviation from zero of all kernels and matrices together."""
    weights = [p.detach().double().square() for p in model.parameters() if p.ndim > 1]
    return math.sqrt(float(sum(w.sum() for w in weights)) / max(1, sum(w.numel() for w in weights)))


def _stored_ratios(
    ratios: RatioMeasurements, units: SampleUnits
) -> Iterator[tuple[str, str, StoredSamples]]:
    """The ratio of each image, by pair of norms and field; nan where the attack moved nothing."""
    for number, pair in enumerate(("l1_linf", "l2_l2")):
        for field in RATIO_FIELDS:
            values = getattr(ratios, field)[number].double()
            is_counted = (values > 0) | (field != "at_attack_result")
            yield pair, field, units.store(values.where(is_counted, torch.nan))


def _lipschitz_block(
    name: str,
    ratios: RatioMeasurements,
    block: NetworkBlock | None,
    bounds: Mapping[str, float],
    layers: Sequence[LayerNorms],
) -> LipschitzBlock:
    """Empirical constants of one block, with the bounds up to it."""
    last = _last_layer(layers, name)
    return LipschitzBlock(
        name=name,
        stage=None if block is None else block.stage,
        l1_linf=_lipschitz_ratio(ratios, 0),
        l2_l2=_lipschitz_ratio(ratios, 1),
        bound_log10=_log10(bounds.get("" if name == LOGITS else name)),
        product_log10=None if last is None else last.product_log10,
        gaussian_log10=None if last is None else last.gaussian_log10,
    )


def _log10(log: float | None) -> float | None:
    return None if log is None or not math.isfinite(log) else log / math.log(10)


def _last_layer(layers: Sequence[LayerNorms], block: str) -> LayerNorms | None:
    """The layer that is called last inside a block, or in the whole model."""
    block_layers = [
        row for row in layers if block == LOGITS or f"{row.name}.".startswith(f"{block}.")
    ]
    return block_layers[-1] if block_layers else None


def _lipschitz_ratio(ratios: RatioMeasurements, pair: int) -> LipschitzRatio:
    at_result = ratios.at_attack_result[pair]
    along, ascent = ratios.attack_max[pair], ratios.ascent_max[pair]
    nonzero = at_result[at_result > 0]
    return LipschitzRatio(
        at_attack_result=float(nonzero.double().mean()) if len(nonzero) else 0.0,
        attack_max=float(along.double().mean()),
        ascent_max=float(ascent.double().mean()),
        largest=float(torch.maximum(along, ascent).max()),
    )
