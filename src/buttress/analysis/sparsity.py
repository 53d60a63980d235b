"""Weight sparsity: in arXiv:2209.14105 more robust models have more weights near zero.

Tang et al., "Exploring the Relationship between Architecture and Adversarially Robust
Generalization".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from buttress.analysis.core import ANALYSES, AnalysisResult, Predictor
from buttress.analysis.figures import Axes, Figure, SubFigure
from buttress.analysis.subject import AnalysisNotApplicable, AnalysisSubject
from buttress.analysis.uncertainty import WEIGHTS_ONLY
from buttress.config import Spec
from buttress.errors import UserError
from buttress.models import parameter_components
from buttress.models.cost import PassCount

# How the parts of a model are grouped; what is in none of them is "rest".
COMPONENT_GROUPS = ("convolution", "attention_qkv", "attention_output", "feed_forward")
OTHER, ALL = "rest", "all"
Largest = float | Literal["max", "per_tensor"]
DEFAULT_QUANTILE = 0.99999
LARGEST_KINDS = ("max", "quantile", "per_tensor")


class ComponentSparsity(Spec):
    """The sparsity of one group of weights."""

    component: str
    sparsity: float
    weights: int


class LayerSparsity(ComponentSparsity):
    """The sparsity of one kernel or matrix."""

    name: str


class SparsityMeasures(Spec):
    """Fraction of weights near zero: of all, by component and by layer; histograms."""

    largest_weight: float  # what the threshold is relative to; of `per_tensor` the maximum
    sparsity: float
    by_largest: dict[str, float]  # the same for each choice of `largest`
    weights: int
    components: tuple[ComponentSparsity, ...]
    layers: tuple[LayerSparsity, ...]  # in the order of the model
    edges: tuple[float, ...]
    counts: dict[str, tuple[int, ...]]


class SparsityResult(SparsityMeasures, AnalysisResult):
    """Sparsity of the trained and of the initial weights."""

    threshold: float  # relative to the largest
    largest: Largest
    quantile: float  # of |w|, in `by_largest`
    initial: SparsityMeasures | None
    initial_unavailable: str  # why there are no initial weights; empty where there are

    @staticmethod
    def plot(results: Mapping[str, SparsityResult], figure: Figure) -> None:
        """Histograms on a log scale, bars by component, lines over the layers; dashed: initial.

        Below those of a single run, a histogram of each component.
        """
        upper: Figure | SubFigure = figure
        if len(results) == 1:
            figure.set_figheight(1.8 * figure.get_figheight())
            upper, lower = figure.subfigures(2, 1, squeeze=False)[:, 0]
            _draw_component_histograms(lower, *results.values())
        histogram, components, layers = upper.subplots(1, 3)
        for number, (label, result) in enumerate(results.items()):
            color = f"C{number}"
            line_label = f"{label} ({result.sparsity:.0%})".strip()
            _draw_histogram(histogram, result, color=color, label=line_label)
            layers.plot([p.sparsity for p in result.layers], color=color, marker=".", ms=3)
            if result.initial is not None:
                _draw_histogram(histogram, result.initial, color=color, ls="--", lw=0.8)
                values = [p.sparsity for p in result.initial.layers]
                layers.plot(values, color=color, ls="--", lw=0.8)
        _draw_components(components, results)
        histogram.set(xlabel="weight", ylabel="share of weights", yscale="log", title="all weights")
        histogram.legend(fontsize="x-small")
        layers.set(xlabel="layer", ylabel="share of weights near zero", title="by layer")
        if any(r.initial for r in results.values()):
            figure.supxlabel("dashed: the initial weights", fontsize="small")

    def summary(self) -> str:
        """Summarize the fraction of weights near zero, by each largest, trained and initial."""
        own_kind = largest_kind(self.largest)
        others = " and ".join(
            f"{value:.1%} by {self._words(kind)}"
            for kind, value in self.by_largest.items()
            if kind != own_kind
        )
        text = (
            f"{self.sparsity:.1%} of {self.weights:,} weights are below {self.threshold:g} of "
            f"{self._words(own_kind)} ({self.largest_weight:.3g}){'; ' if others else ''}{others}"
        )
        initial = self.initial
        if initial is None:
            return f"{text}; no initial weights to compare with: {self.initial_unavailable}."
        return (
            f"{text}; before training {initial.sparsity:.1%}, relative to "
            f"{initial.largest_weight:.3g}."
        )

    def _words(self, kind: str) -> str:
        quantile = f"the {self.quantile:.5g} quantile"
        return {"max": "the largest", "quantile": quantile}.get(kind, "the largest of each tensor")


def _draw_histogram(axes: Axes, measures: SparsityMeasures, **style: Any) -> None:
    centers = [(a + b) / 2 for a, b in zip(measures.edges, measures.edges[1:], strict=False)]
    shares = [max(c, 0.5) / max(measures.weights, 1) for c in measures.counts[ALL]]
    axes.plot(centers, shares, drawstyle="steps-mid", **style)


def _draw_component_histograms(figure: SubFigure, result: SparsityResult) -> None:
    """All weights and the three components with most weights, side by side on one scale."""
    components = sorted(result.components, key=lambda c: -c.weights)[:3]
    names = [ALL, *(c.component for c in components if c.component in result.counts)]
    sparsity = {ALL: result.sparsity, **{c.component: c.sparsity for c in components}}
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        counts = result.counts[name]
        axes.stairs(counts, result.edges, fill=True, color="C0", alpha=0.7)
        title = f"{name.replace('_', ' ')}: {sparsity[name]:.0%} near zero"
        axes.set(yscale="log", xlabel="weight", title=title)
        axes.title.set_fontsize("small")


def _draw_components(axes: Axes, results: Mapping[str, SparsityResult]) -> None:
    names = [n for n in (*COMPONENT_GROUPS, OTHER) if any(n in r.counts for r in results.values())]
    width = 0.8 / max(len(results), 1)
    for index, (label, result) in enumerate(results.items()):
        values = {p.component: p.sparsity for p in result.components}
        positions = [i + index * width for i, n in enumerate(names) if n in values]
        axes.bar(positions, [values[n] for n in names if n in values], width, label=label)
    ticks = [i + 0.4 - width / 2 for i in range(len(names))]
    axes.set_xticks(ticks, [n.replace("_", "\n") for n in names], fontsize="x-small")
    axes.set(ylabel="share of weights near zero", title="by component")


@ANALYSES.register(
    "sparsity",
    paper="arXiv:2209.14105",
    tags=("weights",),
    cost=lambda scope, **_: PassCount(),  # it reads weights only
    uncertainty=(WEIGHTS_ONLY,),
    predictors=(
        Predictor("weights near zero", ("sparsity",), also_initial=True),
        Predictor("largest weight", ("largest_weight",), also_initial=True),
    ),
)
def sparsity(
    subject: AnalysisSubject, *, threshold: float = 0.01, largest: Largest = "max", bins: int = 61
) -> SparsityResult:
    r"""Fraction of weights that are nearly zero: :math:`|w| < 0.01 \max |w|`.

    Taken over all weight tensors with two or more dimensions (kernels and matrices, not biases or
    normalization). ``largest`` is what the threshold is relative to: ``max``, one largest weight
    for the whole model, as published; a quantile of :math:`|w|` such as 0.99999, which single
    outliers do not decide; or ``per_tensor``, the largest weight of each tensor. The record has
    all three. The initial weights are measured in the same way, against their own largest: weights
    that are small at initialization are not a result of training.

    The paper does not say which largest it took; here components and layers compare, with one.
    """
    kind = largest_kind(largest)
    quantile = float(largest) if kind == "quantile" else DEFAULT_QUANTILE
    initial, reason = None, ""
    try:
        initial = measure_sparsity(subject.build_initial_model(), threshold, kind, quantile, bins)
    except AnalysisNotApplicable as error:
        reason = str(error)
    trained = measure_sparsity(subject.model, threshold, kind, quantile, bins)
    return SparsityResult(
        threshold=threshold,
        largest=largest,
        quantile=quantile,
        initial=initial,
        initial_unavailable=reason,
        **dict(iter(trained)),
    )


def largest_kind(largest: Largest) -> str:
    """``max``, ``quantile`` or ``per_tensor``."""
    if largest in ("max", "per_tensor"):
        return str(largest)
    if isinstance(largest, str) or not 0 < largest < 1:
        raise UserError(
            "`largest` must be max, per_tensor or a quantile between 0 and 1 like 0.99999, but "
            f"got {largest!r}"
        )
    return "quantile"


def measure_sparsity(
    model: nn.Module, threshold: float, kind: str, quantile: float, bins: int
) -> SparsityMeasures:
    """Measure the sparsity of a model's current weights."""
    sizes = {
        n: p.detach().flatten().abs().double() for n, p in model.named_parameters() if p.ndim >= 2
    }
    groups, components = weight_groups(model), parameter_components(model)
    everything = torch.cat(list(groups.values())) if groups else torch.zeros(0)
    maximum = float(everything.abs().max()) if len(everything) else 0.0
    reference = {"max": maximum, "quantile": weight_quantile(everything, quantile)}
    small = {
        (k, n): int((w < threshold * reference.get(k, float(w.max()))).sum())
        for n, w in sizes.items()
        for k in LARGEST_KINDS
    }

    def fraction(kind: str, names: Iterable[str]) -> float:
        names = list(names)
        total = sum(len(sizes[n]) for n in names)
        return sum(small[kind, n] for n in names) / total if total else 0.0

    members = {g: [n for n in sizes if component_group(components, n) == g] for g in groups}
    edges = torch.linspace(-maximum, maximum, bins + 1, dtype=torch.float64)
    return SparsityMeasures(
        largest_weight=reference.get(kind, maximum),
        sparsity=fraction(kind, sizes),
        by_largest={k: fraction(k, sizes) for k in LARGEST_KINDS},
        weights=len(everything),
        components=tuple(
            ComponentSparsity(component=g, sparsity=fraction(kind, members[g]), weights=len(w))
            for g, w in groups.items()
        ),
        layers=tuple(
            LayerSparsity(
                name=n,
                component=components.get(n, OTHER),
                sparsity=fraction(kind, [n]),
                weights=len(w),
            )
            for n, w in sizes.items()
        ),
        edges=tuple(edges.tolist()),
        counts={n: _histogram(w, edges) for n, w in {ALL: everything, **groups}.items()},
    )


def weight_quantile(weights: Tensor, quantile: float) -> float:
    """The smallest weight size that at least this fraction of the weights does not exceed."""
    if not len(weights):
        return 0.0
    return float(weights.abs().kthvalue(max(1, math.ceil(quantile * len(weights)))).values)


def component_group(components: Mapping[str, str], name: str) -> str:
    """The group of a weight tensor."""
    component = components.get(name, OTHER)
    return component if component in COMPONENT_GROUPS else OTHER


def weight_groups(model: nn.Module) -> dict[str, Tensor]:
    """All kernels and matrices of a model, flat, by component; only components it has."""
    tensors_by_group: dict[str, list[Tensor]] = {name: [] for name in (*COMPONENT_GROUPS, OTHER)}
    components = parameter_components(model)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            flat = parameter.detach().flatten().double().cpu()
            tensors_by_group[component_group(components, name)].append(flat)
    return {name: torch.cat(tensors) for name, tensors in tensors_by_group.items() if tensors}


def _histogram(weights: Tensor, edges: Tensor) -> tuple[int, ...]:
    if not len(weights) or edges[-1] == 0:
        return (0,) * (len(edges) - 1)
    return tuple(int(c) for c in torch.histogram(weights, edges).hist.tolist())
