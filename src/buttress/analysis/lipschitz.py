"""Lipschitz constants: measured, block by block, beside what the weights allow.

Measured as in RobustWRN (Huang et al., arXiv:2110.03825, equation 3 and figure 5); bounded by the
spectral norms of the layers and by its theorems for Gaussian weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes, passes_of
from buttress.analysis.layers import Layer, layer_table
from buttress.analysis.ratios import LOGITS, Found, Places, measure, search_of
from buttress.analysis.spectral import ROUNDS, Norms
from buttress.analysis.subject import Subject
from buttress.analysis.upper import upper_bounds
from buttress.attacks.call import create_attack
from buttress.attacks.freeze import frozen, on_device_of
from buttress.models.parts import Part, blocks_of
from buttress.spec import Spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Ratio(Spec):
    """Empirical constants in one pair of norms; means over images but for the last."""

    result: float  # at the point the attack returned, as published
    attack: float  # the largest along the attack
    ascent: float  # the largest along gradient ascent on the ratio
    largest: float  # of all points and images: the constant is at least this


class Place(Spec):
    """From the image to the output of a block, or to the logits."""

    name: str
    stage: int | None  # None for the logits
    l1_linf: Ratio  # output in L1, input in Linf
    l2_l2: Ratio
    bound_log10: float | None  # in L2 over L2: the constant is at most this
    product_log10: float | None  # of the norms of all layers up to here; no bound with branches
    gaussian_log10: float | None  # the same of the theorems' figures


class Lipschitz(Spec):
    """Measured constants and bounds of one network."""

    attack: str
    threat: str
    images: int
    moved: int  # images that the attack moved; the others are left out of `result`
    places: tuple[Place, ...]
    layers: tuple[Layer, ...]
    no_bound: str  # why the logits have no upper bound; empty where they have one

    @property
    def logits(self) -> Place:
        return self.places[-1]


def plot_lipschitz(results: Mapping[str, Lipschitz], figure: Figure) -> None:
    """Measured constants by block; measured and bound in L2; norms of layers."""
    published, bounded, layers = figure.subplots(1, 3)
    for number, (label, result) in enumerate(results.items()):
        _draw(result, label, f"C{number}", (published, bounded, layers))
    published.set(ylabel="L1 over Linf", title="under attack (-), ratio ascent (:)")
    bounded.set(ylabel="L2 over L2", title="largest found (-), upper bound (- -)")
    layers.set(ylabel="norm in L2", title="layers (dots), Gaussian figure (line)")
    for axes in (published, bounded):
        axes.set(yscale="log", xlabel="block, then logits")
        axes.xaxis.get_major_locator().set_params(integer=True)
    layers.set(yscale="log", xlabel="layer")
    if any(results):
        figure.legend(fontsize="small", loc="outside lower center", ncols=min(4, len(results)))


def _draw(result: Lipschitz, label: str, colour: str, axes: tuple[Axes, Axes, Axes]) -> None:
    steps = list(range(1, len(result.places) + 1))
    published, bounded, layers = axes
    found = [p.l1_linf for p in result.places]
    published.plot(steps, [r.result for r in found], color=colour, marker="o", ms=3, label=label)
    published.plot(steps, [r.ascent for r in found], color=colour, ls=":")
    bounded.plot(steps, [p.l2_l2.largest for p in result.places], color=colour, marker="o", ms=3)
    limits = [_power(p.bound_log10) for p in result.places]
    bounded.plot(steps, limits, color=colour, ls="--")
    norms = [layer.spectral for layer in result.layers if layer.gaussian is not None]
    layers.plot(norms, color=colour, ls="", marker=".")
    theory = [layer.gaussian for layer in result.layers if layer.gaussian is not None]
    layers.plot(theory, color=colour, lw=0.8, alpha=0.6)


def _power(log: float | None) -> float:
    return float("nan") if log is None or log > 300 else 10.0**log


def cost_lipschitz(
    subject: Subject,
    *,
    attack: str,
    args: Mapping[str, Any] | None,
    limit: int,
    steps: int,
    radii: tuple[float, ...],
) -> Passes:
    """The attack and two ascents; every point that they look at is read once more in every block.

    A round of the iterations for all norms, with and without BatchNorm, is two passes of one image.
    """
    images = min(limit, len(subject.data))
    search = search_of(subject, create_attack(attack, **(args or {})), steps, radii)
    total = passes_of(search.attack, subject, images)
    for _ in search.balls:
        total += passes_of(search.ascent, subject, images)
    return total + Passes(total.forward + total.backward, 2 * ROUNDS)


def table_lipschitz(result: Lipschitz) -> tuple[list[str], list[list[str]]]:
    """What was measured and what bounds it, place by place; the last four are logarithms."""
    header = [
        "up to", "L1/Linf attack", "L1/Linf ascent", "L2/L2 largest", "log10 of it",
        "bound", "product of norms", "Gaussian weights",
    ]  # fmt: skip

    def log(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    rows = []
    for place in result.places:
        largest = place.l2_l2.largest
        found = [place.l1_linf.result, place.l1_linf.ascent, largest]
        logs = [place.bound_log10, place.product_log10, place.gaussian_log10]
        measured = log(math.log10(largest) if largest > 0 else None)
        rows.append([place.name, *(f"{v:.4g}" for v in found), measured, *map(log, logs)])
    return header, rows


def says_lipschitz(result: Lipschitz) -> str:
    """What was measured, and whether a bound is above it."""
    ends = result.logits
    published, l2 = ends.l1_linf, ends.l2_l2
    text = (
        f"Under {result.attack} in {result.threat} the logits move by {published.result:.3g} (L1) "
        f"per unit of Linf, mean of {result.moved} images; ascent on the ratio finds "
        f"{published.ascent:.3g}. In L2 the constant is at least {l2.largest:.3g}"
    )
    if ends.bound_log10 is None:
        return f"{text}; no upper bound: {result.no_bound}."
    return f"{text} and at most 10^{ends.bound_log10:.1f}, from the norms of the layers."


@ANALYSES.register(
    "lipschitz",
    paper="arXiv:2110.03825",
    tags=("attack", "weights"),
    result=Lipschitz,
    plot=plot_lipschitz,
    cost=cost_lipschitz,
    says=says_lipschitz,
    table=table_lipschitz,
)
def lipschitz(
    subject: Subject,
    *,
    attack: str = "pgd",
    args: Mapping[str, Any] | None = None,
    limit: int = 64,
    steps: int = 20,
    radii: tuple[float, ...] = (1.0, 0.1),
) -> Lipschitz:
    r"""How much logits and blocks move per distance under attack, and what the weights allow.

    .. math:: \frac1n \sum_i \max_{x' \in B_\epsilon(x_i)}
        \frac{\|f(x_i) - f(x')\|_1}{\|x_i - x'\|_\infty}

    (equation 3), with f up to each block and up to the logits; also in L2 over L2, the norm in
    which the bounds hold. ``steps`` and ``radii`` belong to the ascent on the ratio.

    Departure from the published code: it takes the last point of PGD and adds 1e-6 to each
    pixel's difference; here x' is the attack's best point, and an image that did not move is left
    out and counted. The maximum over x' that the formula asks for is reported beside it.
    """
    blocks = {part.name: part for part in blocks_of(subject.model)}
    places = Places(subject.model, {name: part.module for name, part in blocks.items()})
    search = search_of(subject, create_attack(attack, **(args or {})), steps, radii)
    found = measure(subject, search, places, limit)
    x = on_device_of(subject.model, subject.first(1).images)
    norms = Norms(subject.model, x)
    with frozen(subject.model):
        bounds, no_bound = upper_bounds(subject.model, x, norms, places.outputs(x))
        layers = layer_table(subject.model, x, norms)
    return Lipschitz(
        attack=attack,
        threat=str(subject.threat),
        images=found[LOGITS].result.shape[1],
        moved=int((found[LOGITS].result[0] > 0).sum()),
        places=tuple(
            _place(name, seen, blocks.get(name), bounds, layers) for name, seen in found.items()
        ),
        layers=layers,
        no_bound=no_bound,
    )


def _place(
    name: str,
    found: Found,
    block: Part | None,
    bounds: Mapping[str, float],
    layers: Sequence[Layer],
) -> Place:
    """What was measured at a place, beside the bounds up to it."""
    last = _last(layers, name)
    return Place(
        name=name,
        stage=None if block is None else block.stage,
        l1_linf=_ratio(found, 0),
        l2_l2=_ratio(found, 1),
        bound_log10=_log10(bounds.get("" if name == LOGITS else name)),
        product_log10=None if last is None else last.product_log10,
        gaussian_log10=None if last is None else last.gaussian_log10,
    )


def _log10(log: float | None) -> float | None:
    return None if log is None or not math.isfinite(log) else log / math.log(10)


def _last(layers: Sequence[Layer], place: str) -> Layer | None:
    """The layer that is called last inside a block, or in the whole network."""
    inside = [row for row in layers if place == LOGITS or f"{row.name}.".startswith(f"{place}.")]
    return inside[-1] if inside else None


def _ratio(found: Found, pair: int) -> Ratio:
    result, along, ascent = found.result[pair], found.attack[pair], found.ascent[pair]
    moved = result[result > 0]
    return Ratio(
        result=float(moved.double().mean()) if len(moved) else 0.0,
        attack=float(along.double().mean()),
        ascent=float(ascent.double().mean()),
        largest=float(torch.maximum(along, ascent).max()),
    )
