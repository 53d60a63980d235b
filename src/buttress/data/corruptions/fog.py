"""Fog: a cloud made by midpoint displacement."""

from __future__ import annotations

import torch
from torch import Tensor

from buttress.data.corruptions.core import CORRUPTIONS, PAPER
from buttress.streams import Streams


@CORRUPTIONS.register(
    "fog",
    paper=PAPER,
    tags=("common", "weather"),
    small=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    large=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
)
def fog(x: Tensor, constants: tuple[float, float], streams: Streams) -> Tensor:
    """A random cloud is added, and the brightest value of the image is kept."""
    amount, decay = constants
    highest = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * cloud(x, decay, streams)) * (highest / (highest + amount))


def cloud(x: Tensor, decay: float, streams: Streams) -> Tensor:
    """(N, 1, H, W) for each image a map from 0 to 1, a cut of a square of side 2^k."""
    side = 1 << (max(x.shape[2:]) - 1).bit_length()
    heights = displaced(side, decay, streams.uniform(torch.empty(len(x), side * side)).double())
    return heights[:, : x.shape[2], : x.shape[3]].unsqueeze(1)


def displaced(side: int, decay: float, u: Tensor) -> Tensor:
    """(N, side, side) diamond-square maps on a torus, from 0 to 1.

    A midpoint is the mean of its four neighbours plus w U(-w, w), where w is 100 at first and is
    divided by ``decay`` from level to level: the noise falls with its square.

    Args:
        side: a power of two.
        decay: of the noise.
        u: (N, side^2) uniform on [0, 1); the last one is not used.
    """
    heights = torch.zeros(len(u), side, side, dtype=torch.float64)
    step, spread, used = side, 100.0, 0

    def between(total: Tensor) -> Tensor:
        nonlocal used
        count = total[0].numel()
        noise = (2 * u[:, used : used + count] - 1).view_as(total)
        used += count
        return total / 4 + spread**2 * noise

    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        centres = between(pairs + pairs.roll(-1, 2))
        heights[:, half::step, half::step] = centres
        upper = centres + centres.roll(1, 1) + corners + corners.roll(-1, 2)
        heights[:, ::step, half::step] = between(upper)
        left = centres + centres.roll(1, 2) + corners + corners.roll(-1, 1)
        heights[:, half::step, ::step] = between(left)
        step, spread = half, spread / decay
    heights -= heights.amin((1, 2), keepdim=True)
    return heights / heights.amax((1, 2), keepdim=True)
