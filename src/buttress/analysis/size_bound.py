r"""How a bound on the Lipschitz constant grows with depth and width (arXiv:2110.03825, theorem 2).

Huang et al., "Exploring Architectural Ingredients of Adversarially Robust Deep Neural Networks".
The bound is the product over layers with independent weights :math:`N(0, \sigma^2)`; shortcuts,
normalization and activations are left out, as in the theorem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any, Literal, NamedTuple

from buttress.analysis.core import ANALYSES, AnalysisResult, PositiveFloat
from buttress.analysis.figures import Figure
from buttress.analysis.methods.gaussian_bound import convolution_bound, dense_bound
from buttress.analysis.uncertainty import FORMULA
from buttress.config import Spec
from buttress.errors import UserError
from buttress.system.progress import Progress, track

StageProperty = Literal["depth", "width"]
StageSizes = tuple[int, int, int]
WRN_34_10: dict[StageProperty, StageSizes] = {
    "depth": (5, 5, 5),
    "width": (10, 10, 10),
}  # WRN-34-10
STEM, CLASSES, IMAGE, KERNEL = 16, 10, 32, 3
SIGMA = math.sqrt(2 / (KERNEL**2 * 4 * STEM * 10))  # He's for the widest layer of WRN-34-10


class LayerSize(NamedTuple):
    """A layer by its sizes; a size of 0 is a dense layer."""

    inputs: int
    outputs: int
    size: int

    def log10(self, sigma: float | None) -> float:
        """Of its bound; without a sigma, He's for its inputs."""
        fan = self.inputs * (KERNEL**2 if self.size else 1)
        deviation = math.sqrt(2 / fan) if sigma is None else sigma
        if not self.size:
            return math.log10(dense_bound(self.inputs, self.outputs, deviation))
        padded, kernel = [self.size + KERNEL - 1] * 2, [KERNEL] * 2
        return math.log10(convolution_bound(self.inputs, self.outputs, padded, kernel, deviation))


class GrowthDirection(Spec):
    """The bound as one stage gets deeper or wider.

    Steps are of its decimal logarithm, between neighbors in a grid of all three stages.
    """

    direction: str
    sizes: tuple[int, ...]
    log10: tuple[float, ...]  # of the bound, with the other stages as in WRN-34-10
    smallest_step: float  # with the same variance in all models
    smallest_step_he: float  # with He's variance, which falls with the width
    sigma_needed: float  # every step is positive if weights deviate by more than this


class SizeBoundResult(AnalysisResult):
    """A WideResNet in six directions: depth and width of its three stages."""

    sigma: float
    directions: tuple[GrowthDirection, ...]

    @staticmethod
    def plot(results: Mapping[str, SizeBoundResult], figure: Figure) -> None:
        """The bound against depth, and against width."""
        for axis, what in zip(figure.subplots(1, 2, sharey=True), WRN_34_10, strict=True):
            for label, result in results.items():
                for one in result.directions:
                    if one.direction.startswith(what):
                        name = f"{label} {one.direction.removeprefix(f'{what} of ')}".strip()
                        axis.plot(one.sizes, one.log10, marker="o", label=name)
            axis.set(
                xlabel=f"{what} of a stage", ylabel="log10 of the bound" if what == "depth" else ""
            )
            axis.legend(fontsize="x-small")

    def summary(self) -> str:
        """Summarize where the bound grows, and where only at fixed variance."""
        falling = [one.direction for one in self.directions if one.smallest_step <= 0]
        scaled = [one.direction for one in self.directions if one.smallest_step_he <= 0]
        least = min(self.directions, key=lambda one: one.smallest_step)
        needed = max(one.sigma_needed for one in self.directions)
        grows = (
            f"does not grow with {', '.join(falling)}" if falling else "grows in every direction"
        )
        he_note = (
            f" With He's variance it does not grow with {', '.join(scaled)}." if scaled else ""
        )
        return (
            f"With weights of deviation {self.sigma:.2g} the bound {grows}; the smallest step is "
            f"10^{least.smallest_step:.2g} ({least.direction}). That needs a deviation above "
            f"{needed:.2g}.{he_note}"
        )


def size_bound_cost(*, depths: Sequence[int], widths: Sequence[int], **_: Any) -> str:
    """Cost: a formula for each model of both grids."""
    networks = sum(
        len(_check_sizes(sizes)) ** len(WRN_34_10["depth"]) for sizes in (depths, widths)
    )
    return f"a formula for {networks:,} models, none of which is built"


@ANALYSES.register(
    "size_bound",
    paper="arXiv:2110.03825",
    tags=("bound", "theory"),
    cost=size_bound_cost,
    subject="none",
    example_args={"depths": (1, 5), "widths": (4, 10)},
    uncertainty=(FORMULA,),
)
def size_bound(
    progress: Progress,
    *,
    depths: Sequence[int] = (1, 3, 5, 7, 9),
    widths: Sequence[int] = (2, 4, 6, 8, 10),
    sigma: PositiveFloat = SIGMA,
) -> SizeBoundResult:
    """The Lipschitz bound of WideResNets for Gaussian weights, by depth and width of each stage.

    Every model of the grid of ``depths`` at the widths of WRN-34-10, and of ``widths`` at its
    depths. ``sigma`` is the deviation of all weights: by default that of He's start for the widest
    layer of WRN-34-10, the smallest in it.
    """
    sizes: dict[StageProperty, tuple[int, ...]] = {
        "depth": _check_sizes(depths),
        "width": _check_sizes(widths),
    }
    stages = track(progress, "size_bound", list(product(WRN_34_10, range(3))))
    directions = [_growth_direction(what, stage, sizes[what], sigma) for what, stage in stages]
    return SizeBoundResult(sigma=sigma, directions=tuple(directions))


def _check_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    unique_sizes = tuple(sorted({int(size) for size in sizes}))
    if len(unique_sizes) < 2 or unique_sizes[0] < 1:
        raise UserError(
            f"`depths` and `widths` must each be at least two positive integers, but got {sizes!r}"
        )
    return unique_sizes


def _growth_direction(
    what: StageProperty, stage: int, sizes: tuple[int, ...], sigma: float
) -> GrowthDirection:
    def network(stages: StageSizes) -> list[LayerSize]:
        return wideresnet_layers(**{**WRN_34_10, what: stages})

    lines = [
        [network((*rest[:stage], size, *rest[stage:])) for size in sizes]  # type: ignore[arg-type]
        for rest in product(sizes, repeat=2)
    ]
    steps = [step for line in lines for step in pairwise(line)]
    base = WRN_34_10[what]
    networks = [network((*base[:stage], s, *base[stage + 1 :])) for s in sizes]  # type: ignore[arg-type]
    return GrowthDirection(
        direction=f"{what} of stage {stage + 1}",
        sizes=sizes,
        log10=tuple(log10_bound(net, sigma) for net in networks),
        smallest_step=min(log10_bound(b, sigma) - log10_bound(a, sigma) for a, b in steps),
        smallest_step_he=min(log10_bound(b, None) - log10_bound(a, None) for a, b in steps),
        sigma_needed=max(_minimum_sigma(a, b) for a, b in steps),
    )


def wideresnet_layers(depth: StageSizes, width: StageSizes) -> list[LayerSize]:
    """The convolutions of a WideResNet for 32 pixels, one after the other, and its last layer."""
    layer_list, channels, size = [LayerSize(3, STEM, IMAGE)], STEM, IMAGE
    for stage, (blocks, factor) in enumerate(zip(depth, width, strict=True)):
        out_channels = STEM * 2**stage * factor
        for block in range(blocks):
            layer_list.append(LayerSize(channels, out_channels, size))
            channels = out_channels
            size //= 2 if block == 0 and stage else 1  # the first of a later stage skips pixels
            layer_list.append(LayerSize(out_channels, out_channels, size))
    return [*layer_list, LayerSize(channels, CLASSES, 0)]


def log10_bound(network: Sequence[LayerSize], sigma: float | None) -> float:
    """The decimal logarithm of the product over layers."""
    return sum(layer.log10(sigma) for layer in network)


def _minimum_sigma(smaller: Sequence[LayerSize], larger: Sequence[LayerSize]) -> float:
    """The deviation from which on the larger model has the larger bound."""
    more, gain = len(larger) - len(smaller), log10_bound(larger, 1.0) - log10_bound(smaller, 1.0)
    if more == 0:
        return 0.0 if gain > 0 else math.inf
    return float(10 ** (-gain / more))
