"""Blur corruptions: glass, Gaussian, defocus, motion and zoom.

The published loop goes from the last pixel to the first and means to swap each with a neighbor; as
both are views of one array, it copies the neighbor and moves nothing back. A neighbor that was
visited before has been copied from somewhere itself, so copies form chains. Here all chains of a
batch are followed at once, each round doubling the length that has been followed.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from buttress.data.corruptions.core import corruption, truncate_levels
from buttress.data.corruptions.filters import gaussian_smooth
from buttress.system.rng import SampleRNG


@corruption(
    "common",
    "blur",
    small=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    large=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
)
def glass_blur(x: Tensor, constants: tuple[float, int, int], streams: SampleRNG) -> Tensor:
    """A Gaussian, pixels copied from up to a few pixels away, and the Gaussian again."""
    sigma, max_shift, iterations = constants
    levels = truncate_levels(gaussian_smooth(x, sigma) * 255)
    like = torch.empty(len(x), 2, *x.shape[2:])
    for iteration in range(iterations):
        shifts = (
            streams.draw_uniform(like, iteration).mul_(2 * max_shift).floor_().long() - max_shift
        )
        levels = shuffle_pixels(levels, shifts.clamp_(max=max_shift - 1), max_shift)
    return gaussian_smooth(levels / 255, sigma)


def shuffle_pixels(x: Tensor, shifts: Tensor, max_shift: int) -> Tensor:
    """Each inner pixel, from the last to the first, becomes the pixel at its shift.

    Args:
        x: (N, C, H, W).
        shifts: (N, 2, H, W) down and across, from -reach to reach - 1.
        max_shift: pixels with an index up to this, or from the far side nearer than this, stay.
    """
    height, width = x.shape[2:]
    inner = torch.zeros(height, width, dtype=torch.bool)
    inner[max_shift + 1 : height - max_shift + 1, max_shift + 1 : width - max_shift + 1] = True
    pixel_index = torch.arange(height * width).view(height, width)
    source_index = torch.where(
        inner, pixel_index + shifts[:, 0] * width + shifts[:, 1], pixel_index
    ).flatten(1)
    # A place below `count` is what a pixel has become, one above it what it was at the start.
    count = height * width
    is_changed = inner.flatten()[source_index] & (source_index > pixel_index.flatten())
    source = torch.where(is_changed, source_index, source_index + count)
    start = torch.arange(count, 2 * count).expand(len(x), -1)
    while bool((source < count).any()):
        source = torch.cat([source, start], 1).gather(1, source)
    index = (source - count).unsqueeze(1).expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, index).view_as(x)


# Discs up to this radius lie on a grid of 17 x 17, larger ones fill their own.
MAX_FIXED_GRID_RADIUS = 8


@corruption("extra", "blur", small=(0.4, 0.6, 0.7, 0.8, 1), large=(1, 2, 3, 4, 6))
def gaussian_blur(x: Tensor, sigma: float, streams: SampleRNG) -> Tensor:
    """A Gaussian of this many pixels; the edge is repeated outside."""
    return gaussian_smooth(x, sigma)


@corruption(
    "common",
    "blur",
    small=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    large=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
)
def defocus_blur(x: Tensor, constants: tuple[float, float], streams: SampleRNG) -> Tensor:
    """A disc of a radius with a softened rim; the image is mirrored at its edge pixels.

    The small radii up to 0.5 hold one pixel: what blurs there is the softening alone.
    """
    kernel = disk_kernel(*constants)
    reach = len(kernel) // 2
    padded = F.pad(x, (reach, reach, reach, reach), mode="reflect")
    # By Fourier transforms, which in float64 are exact here and beat convolving at any radius.
    size = padded.shape[2:]
    spectrum = torch.fft.rfft2(padded) * torch.fft.rfft2(kernel, size)
    return torch.fft.irfft2(spectrum, size)[:, :, 2 * reach :, 2 * reach :]


@lru_cache(maxsize=16)
def disk_kernel(radius: float, softening: float) -> Tensor:
    """The disc as a square kernel that sums to 1, without the empty rows around it."""
    from scipy.ndimage import correlate1d

    is_small = radius <= MAX_FIXED_GRID_RADIUS
    reach = MAX_FIXED_GRID_RADIUS if is_small else math.floor(radius)
    steps = np.arange(-reach, reach + 1)
    kernel = (steps[:, None] ** 2 + steps**2 <= radius**2).astype(np.float64)
    kernel /= kernel.sum()
    taps = np.arange(-1, 2) if is_small else np.arange(-2, 3)
    weights = np.exp(-(taps**2) / (2 * softening**2))
    for axis in (0, 1):
        kernel = correlate1d(kernel, weights / weights.sum(), axis, mode="mirror")
    empty = int(np.flatnonzero(kernel.max(0) > 0)[0])
    return torch.from_numpy(kernel[empty : len(kernel) - empty, empty : len(kernel) - empty])


MIN_TAP_WEIGHT = 1e-9  # taps below this cannot change a level


@corruption(
    "common",
    "blur",
    small=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    large=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
)
def motion_blur(x: Tensor, constants: tuple[float, float], streams: SampleRNG) -> Tensor:
    """Half a Gaussian along a direction within 45 degrees of the horizontal."""
    radius, sigma = constants
    degrees = streams.draw_fractions(1, "angle").squeeze(1) * 90 - 45
    # ImageMagick rounds where the other corruptions cut off.
    return (directional_blur(x, radius, sigma, degrees) * 255).round_() / 255


def directional_blur(x: Tensor, radius: float, sigma: float, degrees: Tensor) -> Tensor:
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
        if weight < MIN_TAP_WEIGHT:
            break
        rows = (torch.arange(height) + down[:, tap, None]).clamp_(0, height - 1)
        columns = (torch.arange(width) + right[:, tap, None]).clamp_(0, width - 1)
        index = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).flatten(1).unsqueeze(1)
        out += weight * pixels.gather(2, index.expand(-1, x.shape[1], -1))
    return out.view_as(x)


MAX_MATRIX_PIXELS = 1024  # pixels for which one product with a matrix beats enlarging 26 times


@corruption(
    "common",
    "blur",
    small=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    large=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
)
def zoom_blur(x: Tensor, constants: tuple[float, float], streams: SampleRNG) -> Tensor:
    """The mean of the image and its enlarged copies, from 1 by a step up to a factor."""
    height, width = x.shape[2:]
    if height * width > MAX_MATRIX_PIXELS:
        return mean_of_zooms(x, *constants)
    matrix = zoom_matrix(height, width, *constants)
    return (x.flatten(2) @ matrix).view_as(x)


def mean_of_zooms(x: Tensor, last: float, step: float) -> Tensor:
    # Rounding in this range decides whether the last factor belongs to it, as it did in the paper.
    factors = np.arange(1, last, step).tolist()
    total = x.clone()
    for factor in factors:
        total += zoom_center(x, factor)
    return total / (len(factors) + 1)


@lru_cache(maxsize=8)
def zoom_matrix(height: int, width: int, last: float, step: float) -> Tensor:
    """(H W, H W) all enlargements at once: what they make of each single pixel."""
    pixels = torch.eye(height * width, dtype=torch.float64).view(-1, 1, height, width)
    return mean_of_zooms(pixels, last, step).flatten(1)


def zoom_center(x: Tensor, factor: float) -> Tensor:
    """The middle of each image, enlarged linearly to the full size."""
    if factor == 1:
        return x
    height, width = x.shape[2:]
    tall, wide = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - tall) // 2, (width - wide) // 2
    middle = x[:, :, top : top + tall, left : left + wide]
    size = round(tall * factor), round(wide * factor)
    large = F.interpolate(middle, size, mode="bilinear", align_corners=True)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return large[:, :, top : top + height, left : left + width]
