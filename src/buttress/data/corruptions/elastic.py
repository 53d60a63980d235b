"""A random affine map, then small random stretches from place to place."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from buttress.data.corruptions.core import CORRUPTIONS, PAPER
from buttress.data.corruptions.smoothing import smooth
from buttress.streams import Streams

WIDER = 244 / 224  # the constants for 224 pixels were meant for that size and written for 244


@CORRUPTIONS.register(
    "elastic_transform",
    paper=PAPER,
    tags=("common", "digital"),
    small=(
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    large=(
        (2 * WIDER, 0.7 * WIDER, 0.1 * WIDER),
        (2 * WIDER, 0.08 * WIDER, 0.2 * WIDER),
        (0.05 * WIDER, 0.01 * WIDER, 0.02 * WIDER),
        (0.07 * WIDER, 0.01 * WIDER, 0.02 * WIDER),
        (0.12 * WIDER, 0.01 * WIDER, 0.02 * WIDER),
    ),
)
def elastic_transform(x: Tensor, constants: tuple[float, ...], streams: Streams) -> Tensor:
    """Three points are moved at random and the image with them; then each pixel moves a little.

    The constants are shares of the shorter side: strength and smoothness of the small moves, and
    the largest shift of the three points. Departure from the published code: OpenCV rounds the
    places it reads from to 1/32 pixel in the affine map, we do not.
    """
    side = min(x.shape[2:])
    strength, sigma, shift = (value * side for value in constants)
    places = affine_places(x.shape[2], x.shape[3], shift, streams)
    moved = read_at(x, places, at_centres=True)
    if strength == 0:
        return moved
    noise = 2 * streams.uniform(torch.empty(len(x), 2, *x.shape[2:])).double() - 1
    moves = strength * smooth(noise, sigma, "reflect", truncate=3)
    return read_at(moved, grid(x.shape[2], x.shape[3]) + moves.movedim(1, 3), at_centres=False)


def affine_places(height: int, width: int, shift: float, streams: Streams) -> Tensor:
    """(N, H, W, 2) where each pixel comes from, as (u, v) with v down."""
    reach = min(height, width) // 3
    u, v = width // 2, height // 2
    corners = torch.tensor(
        [[u + reach, v + reach], [u + reach, v - reach], [u - reach, v - reach]],
        dtype=torch.float64,
    )
    draws = streams.fractions(6, "corners").view(-1, 3, 2)
    moved = corners + (2 * draws - 1) * shift
    back = torch.linalg.solve(F.pad(moved, (0, 1), value=1.0), corners.expand(len(moved), -1, -1))
    places: Tensor = F.pad(grid(height, width), (0, 1), value=1.0).flatten(0, 1) @ back
    return places.view(-1, height, width, 2)


def grid(height: int, width: int) -> Tensor:
    """(H, W, 2) the place (u, v) of each pixel."""
    v, u = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([u, v], 2).double()


def read_at(x: Tensor, places: Tensor, *, at_centres: bool) -> Tensor:
    """Images at places (N, H, W, 2) in pixels, linearly; outside they are mirrored.

    The mirror stands at the centres of the edge pixels, or else at their outer edges.
    """
    size = torch.tensor([x.shape[3], x.shape[2]], dtype=torch.float64)
    scaled = 2 * places / (size - 1) - 1 if at_centres else (2 * places + 1) / size - 1
    return F.grid_sample(x, scaled, "bilinear", "reflection", align_corners=at_centres)
