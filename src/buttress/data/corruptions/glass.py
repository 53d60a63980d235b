"""Frosted glass: pixels take the place of their neighbours.

The published loop goes from the last pixel to the first and means to swap each with a neighbour; as
both are views of one array, it copies the neighbour and moves nothing back. A neighbour that was
visited before has been copied from somewhere itself, so copies form chains. Here all chains of a
batch are followed at once, each round doubling the length that has been followed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from buttress.data.corruptions.core import CORRUPTIONS, PAPER
from buttress.data.corruptions.levels import whole
from buttress.data.corruptions.smoothing import smooth
from buttress.streams import Streams


@CORRUPTIONS.register(
    "glass_blur",
    paper=PAPER,
    tags=("common", "blur"),
    small=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    large=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
)
def glass_blur(x: Tensor, constants: tuple[float, int, int], streams: Streams) -> Tensor:
    """A Gaussian, pixels copied from up to a few pixels away, and the Gaussian again."""
    sigma, reach, times = constants
    levels = whole(smooth(x, sigma) * 255)
    like = torch.empty(len(x), 2, *x.shape[2:])
    for turn in range(times):
        drawn = streams.uniform(like, turn).mul_(2 * reach).floor_().long() - reach
        levels = copied(levels, drawn.clamp_(max=reach - 1), reach)
    return smooth(levels / 255, sigma)


def copied(x: Tensor, shifts: Tensor, reach: int) -> Tensor:
    """Each inner pixel, from the last to the first, becomes the pixel at its shift.

    Args:
        x: (N, C, H, W).
        shifts: (N, 2, H, W) down and across, from -reach to reach - 1.
        reach: pixels with an index up to this, or from the far side nearer than this, stay.
    """
    height, width = x.shape[2:]
    inner = torch.zeros(height, width, dtype=torch.bool)
    inner[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1] = True
    here = torch.arange(height * width).view(height, width)
    there = torch.where(inner, here + shifts[:, 0] * width + shifts[:, 1], here).flatten(1)
    # A place below `count` is what a pixel has become, one above it what it was at the start.
    count = height * width
    is_changed = inner.flatten()[there] & (there > here.flatten())
    source = torch.where(is_changed, there, there + count)
    start = torch.arange(count, 2 * count).expand(len(x), -1)
    while bool((source < count).any()):
        source = torch.cat([source, start], 1).gather(1, source)
    index = (source - count).unsqueeze(1).expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, index).view_as(x)
