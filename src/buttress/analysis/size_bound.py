r"""How a bound on the Lipschitz constant grows with depth and width (arXiv:2110.03825, theorem 2).

Huang et al., "Exploring Architectural Ingredients of Adversarially Robust Deep Neural Networks".
The bound is the product over layers with independent weights :math:`N(0, \sigma^2)`; shortcuts,
normalisation and activations are left out, as in the theorem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from buttress.analysis.core import ANALYSES
from buttress.analysis.gaussian import convolution_bound, dense_bound
from buttress.errors import UserError
from buttress.progress import Progress
from buttress.spec import Spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

What = Literal["depth", "width"]
Three = tuple[int, int, int]
BASE: dict[What, Three] = {"depth": (5, 5, 5), "width": (10, 10, 10)}  # WRN-34-10
STEM, CLASSES, IMAGE, KERNEL = 16, 10, 32, 3
SIGMA = math.sqrt(2 / (KERNEL**2 * 4 * STEM * 10))  # He's for the widest layer of WRN-34-10


class Layer(NamedTuple):
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


class Direction(Spec):
    """The bound as one stage gets deeper or wider.

    Steps are of its decimal logarithm, between neighbours in a grid of all three stages.
    """

    direction: str
    sizes: tuple[int, ...]
    log10: tuple[float, ...]  # of the bound, with the other stages as in WRN-34-10
    smallest_step: float  # with the same variance in all networks
    smallest_step_he: float  # with He's variance, which falls with the width
    sigma_needed: float  # every step is positive if weights deviate by more than this


class SizeBound(Spec):
    """A WideResNet in six directions: depth and width of its three stages."""

    sigma: float
    directions: tuple[Direction, ...]


def plot_size_bound(results: Mapping[str, SizeBound], figure: Figure) -> None:
    """The bound against depth, and against width."""
    for axis, what in zip(figure.subplots(1, 2, sharey=True), BASE, strict=True):
        for label, result in results.items():
            for one in result.directions:
                if one.direction.startswith(what):
                    name = f"{label} {one.direction.removeprefix(f'{what} of ')}".strip()
                    axis.plot(one.sizes, one.log10, marker="o", label=name)
        axis.set(
            xlabel=f"{what} of a stage", ylabel="log10 of the bound" if what == "depth" else ""
        )
        axis.legend(fontsize="x-small")


def says_size_bound(result: SizeBound) -> str:
    """Where the bound grows, and where only because the variance is held."""
    falling = [one.direction for one in result.directions if one.smallest_step <= 0]
    scaled = [one.direction for one in result.directions if one.smallest_step_he <= 0]
    least = min(result.directions, key=lambda one: one.smallest_step)
    needed = max(one.sigma_needed for one in result.directions)
    grows = f"does not grow with {_and(falling)}" if falling else "grows in every direction"
    held = f" With He's variance it does not grow with {_and(scaled)}." if scaled else ""
    return (
        f"With weights of deviation {result.sigma:.2g} the bound {grows}; the smallest step is "
        f"10^{least.smallest_step:.2g} ({least.direction}). That needs a deviation above "
        f"{needed:.2g}.{held}"
    )


def _and(names: Sequence[str]) -> str:
    return ", ".join(names)


def cost_size_bound(*, depths: Sequence[int], widths: Sequence[int], **_: Any) -> str:
    """A formula for each network of both grids."""
    networks = sum(len(_checked(sizes)) ** len(BASE["depth"]) for sizes in (depths, widths))
    return f"a formula for {networks:,} networks, none of which is built"


@ANALYSES.register(
    "size_bound",
    paper="arXiv:2110.03825",
    tags=("bound", "theory"),
    result=SizeBound,
    plot=plot_size_bound,
    cost=cost_size_bound,
    says=says_size_bound,
    standalone=True,
)
def size_bound(
    progress: Progress,
    *,
    depths: Sequence[int] = (1, 3, 5, 7, 9),
    widths: Sequence[int] = (2, 4, 6, 8, 10),
    sigma: float = SIGMA,
) -> SizeBound:
    """The Lipschitz bound of WideResNets for Gaussian weights, by depth and width of each stage.

    Every network of the grid of ``depths`` at the widths of WRN-34-10, and of ``widths`` at its
    depths. ``sigma`` is the deviation of all weights: by default that of He's start for the widest
    layer of WRN-34-10, the smallest in it.
    """
    sizes: dict[What, tuple[int, ...]] = {"depth": _checked(depths), "width": _checked(widths)}
    if not (math.isfinite(sigma) and sigma > 0):
        raise UserError(f"`sigma > 0` must hold, but got sigma={sigma!r}")
    task = progress.task("size_bound", 6)
    found = []
    for what, stage in product(BASE, range(3)):
        found.append(_direction(what, stage, sizes[what], sigma))
        task.advance(1, note=found[-1].direction)
    task.close()
    return SizeBound(sigma=sigma, directions=tuple(found))


def _checked(sizes: Sequence[int]) -> tuple[int, ...]:
    found = tuple(sorted({int(size) for size in sizes}))
    if len(found) < 2 or found[0] < 1:
        raise UserError(f"two or more sizes from 1 on are needed, but got {sizes!r}")
    return found


def _direction(what: What, stage: int, sizes: tuple[int, ...], sigma: float) -> Direction:
    def network(stages: Three) -> list[Layer]:
        return layers(**{**BASE, what: stages})

    lines = [
        [network((*rest[:stage], size, *rest[stage:])) for size in sizes]  # type: ignore[arg-type]
        for rest in product(sizes, repeat=2)
    ]
    steps = [step for line in lines for step in pairwise(line)]
    base = BASE[what]
    along = [network((*base[:stage], s, *base[stage + 1 :])) for s in sizes]  # type: ignore[arg-type]
    return Direction(
        direction=f"{what} of stage {stage + 1}",
        sizes=sizes,
        log10=tuple(bound(net, sigma) for net in along),
        smallest_step=min(bound(b, sigma) - bound(a, sigma) for a, b in steps),
        smallest_step_he=min(bound(b, None) - bound(a, None) for a, b in steps),
        sigma_needed=max(_needed(a, b) for a, b in steps),
    )


def layers(depth: Three, width: Three) -> list[Layer]:
    """The convolutions of a WideResNet for 32 pixels, one after the other, and its last layer."""
    found, channels, size = [Layer(3, STEM, IMAGE)], STEM, IMAGE
    for stage, (blocks, factor) in enumerate(zip(depth, width, strict=True)):
        wide = STEM * 2**stage * factor
        for block in range(blocks):
            found.append(Layer(channels, wide, size))
            channels = wide
            size //= 2 if block == 0 and stage else 1  # the first of a later stage skips pixels
            found.append(Layer(wide, wide, size))
    return [*found, Layer(channels, CLASSES, 0)]


def bound(network: Sequence[Layer], sigma: float | None) -> float:
    """The decimal logarithm of the product over layers."""
    return sum(layer.log10(sigma) for layer in network)


def _needed(smaller: Sequence[Layer], larger: Sequence[Layer]) -> float:
    """The deviation from which on the larger network has the larger bound."""
    more, gain = len(larger) - len(smaller), bound(larger, 1.0) - bound(smaller, 1.0)
    if more == 0:
        return 0.0 if gain > 0 else math.inf
    return float(10 ** (-gain / more))
