"""Frost on the lens, drawn: the published photographs cannot be handed on with a package.

The weights of image and ice are the published ones, the ice is made from noise. Compare results
with others that were made here, or put the official arrays into the cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from buttress.data.corruptions.core import CORRUPTIONS, PAPER
from buttress.data.corruptions.fog import displaced
from buttress.data.corruptions.motion import streaked
from buttress.streams import Streams

TINT = (0.88, 0.95, 1.0)
ARMS = 6
SCALES = (1 / 10, 1 / 24)  # lengths of needles, as shares of the longer side
COVER = 0.3  # how much of the image the needles of one length cover, counted with overlaps


@CORRUPTIONS.register(
    "frost",
    paper=PAPER,
    tags=("common", "weather"),
    small=((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    large=((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    note="procedural: crystals drawn from noise stand in for the published photographs",
)
def frost(x: Tensor, constants: tuple[float, float], streams: Streams) -> Tensor:
    """Ice over the image: procedural crystals with the published weights, not the photographs."""
    kept, strength = constants
    ice = crystals(x, streams)
    if x.shape[1] == 3:
        ice = ice * torch.tensor(TINT, dtype=x.dtype).view(1, 3, 1, 1)
    return kept * x + strength * ice


def crystals(x: Tensor, streams: Streams) -> Tensor:
    """(N, 1, H, W) in [0, 1]: needles with six arms on a patchy film."""
    n, _, height, width = x.shape
    longer = max(height, width)
    side = 1 << (longer - 1).bit_length()
    film = displaced(side, 1.8, streams.uniform(torch.empty(n, side * side)).double())
    film = film[:, :height, :width].unsqueeze(1)
    ice = 0.1 + 0.5 * film
    turns = streams.fractions(len(SCALES), "turns") * 60
    for number, share in enumerate(SCALES, start=1):
        length = max(1.0, longer * share)
        u = streams.uniform(torch.empty(n, 1, height, width), number).double()
        # More of them where the film is thick: frost comes in patches.
        points = (u < COVER / (ARMS * length) * 4 * film.square()).double()
        stars = torch.zeros_like(points)
        for arm in range(ARMS):
            stars += streaked(points, length, length, turns[:, number - 1] + 60 * arm)
        # A needle is as bright at its root as a whole one is, however long.
        ice += 0.6 * (stars * length).clamp_max(1)
    return ice.clamp_max_(1)
