"""Blurs of a lens: out of focus, and the plain Gaussian."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from buttress.data.corruptions.core import CORRUPTIONS, PAPER
from buttress.data.corruptions.smoothing import smooth
from buttress.streams import Streams

LARGEST_ON_GRID = 8  # discs up to this radius lie on a grid of 17 x 17, larger ones fill their own


@CORRUPTIONS.register(
    "gaussian_blur",
    paper=PAPER,
    tags=("extra", "blur"),
    small=(0.4, 0.6, 0.7, 0.8, 1),
    large=(1, 2, 3, 4, 6),
)
def gaussian_blur(x: Tensor, sigma: float, streams: Streams) -> Tensor:
    """A Gaussian of this many pixels; the edge is repeated outside."""
    return smooth(x, sigma)


@CORRUPTIONS.register(
    "defocus_blur",
    paper=PAPER,
    tags=("common", "blur"),
    small=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    large=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
)
def defocus_blur(x: Tensor, constants: tuple[float, float], streams: Streams) -> Tensor:
    """A disc of a radius with a softened rim; the image is mirrored at its edge pixels.

    The small radii up to 0.5 hold one pixel: what blurs there is the softening alone.
    """
    kernel = disc(*constants)
    reach = len(kernel) // 2
    padded = F.pad(x, (reach, reach, reach, reach), mode="reflect")
    # By Fourier transforms, which in float64 are exact here and beat convolving at any radius.
    size = padded.shape[2:]
    spectrum = torch.fft.rfft2(padded) * torch.fft.rfft2(kernel, size)
    return torch.fft.irfft2(spectrum, size)[:, :, 2 * reach :, 2 * reach :]


@lru_cache(maxsize=16)
def disc(radius: float, softening: float) -> Tensor:
    """The disc as a square kernel that sums to 1, without the empty rows around it."""
    from scipy.ndimage import correlate1d

    is_small = radius <= LARGEST_ON_GRID
    reach = LARGEST_ON_GRID if is_small else math.floor(radius)
    steps = np.arange(-reach, reach + 1)
    kernel = (steps[:, None] ** 2 + steps**2 <= radius**2).astype(np.float64)
    kernel /= kernel.sum()
    taps = np.arange(-1, 2) if is_small else np.arange(-2, 3)
    weights = np.exp(-(taps**2) / (2 * softening**2))
    for axis in (0, 1):
        kernel = correlate1d(kernel, weights / weights.sum(), axis, mode="mirror")
    empty = int(np.flatnonzero(kernel.max(0) > 0)[0])
    return torch.from_numpy(kernel[empty : len(kernel) - empty, empty : len(kernel) - empty])
