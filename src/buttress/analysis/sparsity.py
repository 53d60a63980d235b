"""Weight sparsity: in arXiv:2209.14105 the more robust networks had more weights near zero.

Tang et al., "Exploring the Relationship between Architecture and Adversarially Robust
Generalization".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from buttress.analysis.core import ANALYSES
from buttress.analysis.subject import Subject
from buttress.models import component_of
from buttress.spec import Spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# How the parts of a network are grouped; what is in none of them is "rest".
GROUPS = ("convolution", "attention_qkv", "attention_output", "feed_forward")
REST, ALL = "rest", "all"


class Part(Spec):
    """The sparsity of one group of weights."""

    component: str
    ratio: float
    weights: int


class Sparsity(Spec):
    """Share of weights below a threshold, as a whole and by component, with histograms."""

    threshold: float  # relative to the largest
    largest: float  # largest |w| of the network
    ratio: float
    weights: int
    components: tuple[Part, ...]
    edges: tuple[float, ...]
    counts: dict[str, tuple[int, ...]]


def plot_sparsity(results: Mapping[str, Sparsity], figure: Figure) -> None:
    """Histograms of all weights on a log scale, one line per run, and bars by component."""
    left, right = figure.subplots(1, 2)
    for label, result in results.items():
        centres = [(a + b) / 2 for a, b in zip(result.edges, result.edges[1:], strict=False)]
        shares = [max(c, 0.5) / max(result.weights, 1) for c in result.counts[ALL]]
        left.plot(centres, shares, label=f"{label} ({result.ratio:.0%})", drawstyle="steps-mid")
    left.set(xlabel="weight", ylabel="share of weights", yscale="log", title="all weights")
    left.legend(fontsize="small")
    names = [n for n in (*GROUPS, REST) if any(n in r.counts for r in results.values())]
    width = 0.8 / max(len(results), 1)
    for index, (label, result) in enumerate(results.items()):
        ratios = {p.component: p.ratio for p in result.components}
        places = [i + index * width for i, n in enumerate(names) if n in ratios]
        right.bar(places, [ratios[n] for n in names if n in ratios], width, label=label)
    ticks = [i + 0.4 - width / 2 for i in range(len(names))]
    right.set_xticks(ticks, [n.replace("_", "\n") for n in names])
    right.set(ylabel="share of weights near zero", title="by component")


@ANALYSES.register(
    "sparsity",
    paper="arXiv:2209.14105",
    tags=("weights",),
    result=Sparsity,
    plot=plot_sparsity,
)
def sparsity(subject: Subject, *, threshold: float = 0.01, bins: int = 61) -> Sparsity:
    r"""Share of weights that are nearly zero: :math:`|w| < 0.01 \max |w|`.

    Taken over all weight tensors with two or more dimensions (kernels and matrices, not biases or
    normalisation), with one largest weight for the whole network, so that components compare. The
    paper does not say which of these it took.
    """
    groups = weight_groups(subject.model)
    everything = torch.cat(list(groups.values())) if groups else torch.zeros(0)
    largest = float(everything.abs().max()) if len(everything) else 0.0
    edges = torch.linspace(-largest, largest, bins + 1, dtype=torch.float64)
    parts = {ALL: everything, **groups}
    counts = {n: _histogram(w, edges) for n, w in parts.items()}
    ratios = {n: float((w.abs() < threshold * largest).double().mean()) for n, w in parts.items()}
    return Sparsity(
        threshold=threshold,
        largest=largest,
        ratio=ratios[ALL],
        weights=len(everything),
        components=tuple(
            Part(component=n, ratio=ratios[n], weights=len(w)) for n, w in groups.items()
        ),
        edges=tuple(edges.tolist()),
        counts=counts,
    )


def weight_groups(model: torch.nn.Module) -> dict[str, Tensor]:
    """All kernels and matrices of a network, flat, by component; only components it has."""
    found: dict[str, list[Tensor]] = {name: [] for name in (*GROUPS, REST)}
    components = component_of(model)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            kind = components.get(name, REST)
            flat = parameter.detach().flatten().double().cpu()
            found[kind if kind in GROUPS else REST].append(flat)
    return {name: torch.cat(tensors) for name, tensors in found.items() if tensors}


def _histogram(weights: Tensor, edges: Tensor) -> tuple[int, ...]:
    if not len(weights) or edges[-1] == 0:
        return (0,) * (len(edges) - 1)
    return tuple(int(c) for c in torch.histogram(weights, edges).hist.tolist())
