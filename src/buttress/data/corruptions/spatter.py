"""Drops of water, or mud, on the lens."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from buttress.data.corruptions.core import CORRUPTIONS, PAPER
from buttress.data.corruptions.edges import canny
from buttress.data.corruptions.levels import grey, whole
from buttress.data.corruptions.smoothing import smooth
from buttress.streams import Streams

WATER, MUD = (175, 238, 238), (63, 42, 20)
FARTHEST = 20.0  # pixels from an edge; all beyond are alike
EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
THINNEST_MUD = 0.8

Floats = NDArray[np.float64]


@CORRUPTIONS.register(
    "spatter",
    paper=PAPER,
    tags=("extra", "weather"),
    small=(
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
    large=(
        (0.65, 0.3, 4, 0.69, 0.6, False),
        (0.65, 0.3, 3, 0.68, 0.6, False),
        (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True),
        (0.67, 0.4, 1, 0.65, 1.5, True),
    ),
)
def spatter(x: Tensor, constants: tuple[float, ...], streams: Streams) -> Tensor:
    """Smooth noise above a threshold, as pale water with lit rims, or as brown mud.

    Departure from the published code: distances to an edge are exact, not of a 5 x 5 mask.
    """
    mean, std, sigma, threshold, strength, is_mud = constants
    layer = smooth(mean + std * streams.normal(x[:, :1].float()).double(), sigma)
    if is_mud:
        cover = smooth((layer > threshold).double(), strength)
        cover = torch.where(cover < THINNEST_MUD, 0, cover)
        return x * (1 - cover) + cover * coloured(MUD, x)
    liquid = whole(torch.where(layer < threshold, 0, layer).clamp_max_(1) * 255)
    light = liquid * torch.from_numpy(rims(liquid[:, 0].numpy())).unsqueeze(1)
    most = light.amax((1, 2, 3), keepdim=True).clamp_min(1e-9)  # a dry image stays as it is
    return x + strength * light / most * coloured(WATER, x)


def coloured(rgb: tuple[int, int, int], x: Tensor) -> Tensor:
    """A colour for these images; its grey if they are grey."""
    colour = torch.tensor(rgb, dtype=x.dtype).view(1, 3, 1, 1) / 255
    return colour if x.shape[1] == 3 else grey(colour)


def rims(liquid: Floats) -> Floats:
    """(N, H, W) how much light each place of the drops (N, H, W) throws back."""
    from scipy.ndimage import correlate, uniform_filter

    size = (1, 3, 3)
    far = uniform_filter(distances(canny(liquid, 50, 150)), size, mode="mirror")
    even = np.stack([equalised(image) for image in np.floor(far + 1e-6).astype(np.uint8)])
    lit = correlate(even, np.array([EMBOSS], dtype=np.float64), mode="mirror").clip(0, 255)
    return np.rint(uniform_filter(lit, size, mode="mirror"))


def distances(edges: NDArray[np.bool_]) -> Floats:
    from scipy.ndimage import distance_transform_edt

    out = np.full(edges.shape, FARTHEST)
    for row, image in enumerate(edges):
        if image.any():
            out[row] = np.minimum(distance_transform_edt(~image), FARTHEST)
    return out


def equalised(image: NDArray[np.uint8]) -> Floats:
    """One image with its levels spread evenly; the lowest becomes 0. A flat image stays."""
    counts = np.bincount(image.ravel(), minlength=256)
    lowest = int(np.flatnonzero(counts)[0])
    if counts[lowest] == image.size:
        return image.astype(np.float64)
    above = counts.cumsum() - counts[lowest]
    table: Floats = np.rint(255 * above / (image.size - counts[lowest])).clip(0, 255)
    return table[image]
