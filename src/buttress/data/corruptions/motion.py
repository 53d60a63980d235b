"""Streaks along a direction, as ImageMagick's motion blur draws them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from buttress.data.corruptions.core import CORRUPTIONS, PAPER
from buttress.streams import Streams

LEAST_WEIGHT = 1e-9  # taps below this cannot change a level


@CORRUPTIONS.register(
    "motion_blur",
    paper=PAPER,
    tags=("common", "blur"),
    small=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    large=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
)
def motion_blur(x: Tensor, constants: tuple[float, float], streams: Streams) -> Tensor:
    """Half a Gaussian along a direction within 45 degrees of the horizontal."""
    radius, sigma = constants
    degrees = streams.fractions(1, "angle").squeeze(1) * 90 - 45
    # ImageMagick rounds where the other corruptions cut off.
    return (streaked(x, radius, sigma, degrees) * 255).round_() / 255


def streaked(x: Tensor, radius: float, sigma: float, degrees: Tensor) -> Tensor:
    r"""Images (N, C, H, W), each along its own direction (N,) in degrees; the edge is repeated.

    .. math:: \sum_{i=0}^{2r} w_i\, x(u + o(i \cos\theta), v + o(i \sin\theta)),
        \quad w_i \propto e^{-i^2 / 2\sigma^2}

    with u to the right and v down, and :math:`o(a) = \lceil a - 1/2 \rceil`.
    """
    height, width = x.shape[2:]
    steps = torch.arange(2 * math.ceil(radius) + 1, dtype=torch.float64)
    weights = torch.exp(-steps.square() / (2 * sigma**2))
    weights /= weights.sum()
    angle = degrees.double().unsqueeze(1) * (math.pi / 180)
    right = (steps * angle.cos() - 0.5).ceil().long()  # (N, taps)
    down = (steps * angle.sin() - 0.5).ceil().long()
    pixels, out = x.flatten(2), torch.zeros_like(x).flatten(2)
    for tap, weight in enumerate(weights.tolist()):
        if weight < LEAST_WEIGHT:
            break
        rows = (torch.arange(height) + down[:, tap, None]).clamp_(0, height - 1)
        columns = (torch.arange(width) + right[:, tap, None]).clamp_(0, width - 1)
        index = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).flatten(1).unsqueeze(1)
        out += weight * pixels.gather(2, index.expand(-1, x.shape[1], -1))
    return out.view_as(x)
