"""Weight sparsity: in arXiv:2209.14105 more robust models have more weights near zero.

Tang et al., "Exploring the Relationship between Architecture and Adversarially Robust
Generalization".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import PassCount
from buttress.analysis.subject import AnalysisNotApplicable, AnalysisSubject
from buttress.config import Spec
from buttress.models import parameter_components

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# How the parts of a model are grouped; what is in none of them is "rest".
COMPONENT_GROUPS = ("convolution", "attention_qkv", "attention_output", "feed_forward")
OTHER, ALL = "rest", "all"


class ComponentSparsity(Spec):
    """The sparsity of one group of weights."""

    component: str
    ratio: float
    weights: int


class LayerSparsity(Spec):
    """The sparsity of one kernel or matrix, against the largest weight of the model."""

    name: str
    component: str
    ratio: float
    weights: int


class SparsityMeasures(Spec):
    """Share of weights below a threshold: of all, by component and by layer; histograms."""

    largest: float  # largest |w| of the model
    ratio: float
    weights: int
    components: tuple[ComponentSparsity, ...]
    layers: tuple[LayerSparsity, ...]  # in the order of the model
    edges: tuple[float, ...]
    counts: dict[str, tuple[int, ...]]


class SparsityResult(SparsityMeasures):
    """Sparsity of the trained and of the initial weights."""

    threshold: float  # relative to the largest
    initial: SparsityMeasures | None
    no_initial: str  # why there are no initial weights; empty where there are


def plot_sparsity(results: Mapping[str, SparsityResult], figure: Figure) -> None:
    """Histograms on a log scale, bars by component, lines over the layers; dashed: initial."""
    histogram, components, layers = figure.subplots(1, 3)
    for number, (label, result) in enumerate(results.items()):
        color = f"C{number}"
        line_label = f"{label} ({result.ratio:.0%})".strip()
        _draw_histogram(histogram, result, color=color, label=line_label)
        layers.plot([p.ratio for p in result.layers], color=color, marker=".", ms=3)
        if result.initial is not None:
            _draw_histogram(histogram, result.initial, color=color, ls="--", lw=0.8)
            ratios = [p.ratio for p in result.initial.layers]
            layers.plot(ratios, color=color, ls="--", lw=0.8)
    _draw_components(components, results)
    histogram.set(xlabel="weight", ylabel="share of weights", yscale="log", title="all weights")
    histogram.legend(fontsize="x-small")
    layers.set(xlabel="layer", ylabel="share of weights near zero", title="by layer")
    if any(r.initial for r in results.values()):
        figure.supxlabel("dashed: the initial weights", fontsize="small")


def _draw_histogram(axes: Axes, measures: SparsityMeasures, **style: Any) -> None:
    centers = [(a + b) / 2 for a, b in zip(measures.edges, measures.edges[1:], strict=False)]
    shares = [max(c, 0.5) / max(measures.weights, 1) for c in measures.counts[ALL]]
    axes.plot(centers, shares, drawstyle="steps-mid", **style)


def _draw_components(axes: Axes, results: Mapping[str, SparsityResult]) -> None:
    names = [n for n in (*COMPONENT_GROUPS, OTHER) if any(n in r.counts for r in results.values())]
    width = 0.8 / max(len(results), 1)
    for index, (label, result) in enumerate(results.items()):
        ratios = {p.component: p.ratio for p in result.components}
        positions = [i + index * width for i, n in enumerate(names) if n in ratios]
        axes.bar(positions, [ratios[n] for n in names if n in ratios], width, label=label)
    ticks = [i + 0.4 - width / 2 for i in range(len(names))]
    axes.set_xticks(ticks, [n.replace("_", "\n") for n in names], fontsize="x-small")
    axes.set(ylabel="share of weights near zero", title="by component")


def sparsity_cost(subject: AnalysisSubject, **_: Any) -> PassCount:
    """Cost: none, it reads weights only."""
    return PassCount(0)


def says_sparsity(result: SparsityResult) -> str:
    """Summarize the fraction of weights near zero, trained and initial."""
    initial = result.initial
    text = (
        f"{result.ratio:.1%} of {result.weights:,} weights are below {result.threshold:g} of the "
        f"largest ({result.largest:.3g})"
    )
    if initial is None:
        return f"{text}; no initial weights to compare with: {result.no_initial}."
    return f"{text}; before training {initial.ratio:.1%}, with a largest of {initial.largest:.3g}."


@ANALYSES.register(
    "sparsity",
    paper="arXiv:2209.14105",
    tags=("weights",),
    result=SparsityResult,
    plot=plot_sparsity,
    cost=sparsity_cost,
    says=says_sparsity,
)
def sparsity(
    subject: AnalysisSubject, *, threshold: float = 0.01, bins: int = 61
) -> SparsityResult:
    r"""Share of weights that are nearly zero: :math:`|w| < 0.01 \max |w|`.

    Taken over all weight tensors with two or more dimensions (kernels and matrices, not biases or
    normalization), with one largest weight for the whole model, so that components and layers
    compare. The paper does not say which of these it took. The initial weights are measured in the
    same way, against their own largest: weights that are small at initialization are not a result
    of training.
    """
    initial, reason = None, ""
    try:
        initial = measure_sparsity(subject.build_initial_model(), threshold, bins)
    except AnalysisNotApplicable as error:
        reason = str(error)
    trained = measure_sparsity(subject.model, threshold, bins)
    return SparsityResult(
        threshold=threshold, initial=initial, no_initial=reason, **dict(iter(trained))
    )


def measure_sparsity(model: torch.nn.Module, threshold: float, bins: int) -> SparsityMeasures:
    """Measure the sparsity of a model's current weights."""
    groups = weight_groups(model)
    everything = torch.cat(list(groups.values())) if groups else torch.zeros(0)
    largest = float(everything.abs().max()) if len(everything) else 0.0
    edges = torch.linspace(-largest, largest, bins + 1, dtype=torch.float64)
    parts = {ALL: everything, **groups}

    def ratio(weights: Tensor) -> float:
        small = weights.detach().abs().double() < threshold * largest
        return float(small.double().mean()) if small.numel() else 0.0

    kinds = parameter_components(model)
    return SparsityMeasures(
        largest=largest,
        ratio=ratio(everything),
        weights=len(everything),
        components=tuple(
            ComponentSparsity(component=n, ratio=ratio(w), weights=len(w))
            for n, w in groups.items()
        ),
        layers=tuple(
            LayerSparsity(name=n, component=kinds.get(n, OTHER), ratio=ratio(p), weights=p.numel())
            for n, p in model.named_parameters()
            if p.ndim >= 2
        ),
        edges=tuple(edges.tolist()),
        counts={n: _histogram(w, edges) for n, w in parts.items()},
    )


def weight_groups(model: torch.nn.Module) -> dict[str, Tensor]:
    """All kernels and matrices of a model, flat, by component; only components it has."""
    tensors_by_group: dict[str, list[Tensor]] = {name: [] for name in (*COMPONENT_GROUPS, OTHER)}
    components = parameter_components(model)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            kind = components.get(name, OTHER)
            flat = parameter.detach().flatten().double().cpu()
            tensors_by_group[kind if kind in COMPONENT_GROUPS else OTHER].append(flat)
    return {name: torch.cat(tensors) for name, tensors in tensors_by_group.items() if tensors}


def _histogram(weights: Tensor, edges: Tensor) -> tuple[int, ...]:
    if not len(weights) or edges[-1] == 0:
        return (0,) * (len(edges) - 1)
    return tuple(int(c) for c in torch.histogram(weights, edges).hist.tolist())
