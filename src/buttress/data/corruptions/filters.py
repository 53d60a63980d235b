"""Gaussian smoothing of whole batches: one matrix for the rows, one for the columns.

The matrices are what SciPy's filter makes of the unit matrix, so that borders are SciPy's too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BorderMode = Literal["nearest", "reflect"]


def gaussian_smooth(
    x: Tensor, sigma: float, border: BorderMode = "nearest", truncate: float = 4.0
) -> Tensor:
    """Images (..., H, W) under a Gaussian of ``sigma`` pixels, cut off at ``truncate`` sigmas."""
    if int(truncate * sigma + 0.5) == 0:
        return x
    down = _smoothing_matrix(x.shape[-2], sigma, border, truncate)
    across = _smoothing_matrix(x.shape[-1], sigma, border, truncate)
    return down @ (x @ across.T)


@lru_cache(maxsize=32)
def _smoothing_matrix(side: int, sigma: float, border: BorderMode, truncate: float) -> Tensor:
    from scipy.ndimage import gaussian_filter1d

    unit = np.eye(side)
    return torch.from_numpy(gaussian_filter1d(unit, sigma, 0, mode=border, truncate=truncate))


Floats = NDArray[np.float64]
TAN_22_5 = 0.41421356237309503


def canny(images: Floats, low: float, high: float) -> NDArray[np.bool_]:
    """Where the edges of images (N, H, W) with levels 0 to 255 run.

    The gradient is Sobel's, its size the sum of both parts. An edge is a ridge of it above ``low``
    that is connected to one above ``high``.
    """
    from scipy.ndimage import binary_propagation

    down, across = sobel_derivative(images, 1, 2), sobel_derivative(images, 2, 1)
    size = np.abs(down) + np.abs(across)
    candidates = (size > low) & non_maximum_suppression(size, down, across)
    neighborhood = np.zeros((3, 3, 3), dtype=bool)
    neighborhood[1] = True  # neighbors in the same image only
    edges: NDArray[np.bool_] = binary_propagation(
        candidates & (size > high), structure=neighborhood, mask=candidates
    )
    return edges


def sobel_derivative(images: Floats, axis: int, other: int) -> Floats:
    """Sobel's derivative along an axis; SciPy's own would also smooth from image to image."""
    from scipy.ndimage import correlate1d

    steps: Floats = correlate1d(images, [-1, 0, 1], axis, mode="nearest")
    return correlate1d(steps, [1, 2, 1], other, mode="nearest")


def non_maximum_suppression(size: Floats, down: Floats, across: Floats) -> NDArray[np.bool_]:
    """Where the gradient is largest along its own direction, of which there are four."""
    padded = np.pad(size, ((0, 0), (1, 1), (1, 1)))
    height, width = size.shape[1:]

    def at(v: int, u: int) -> Floats:
        return padded[:, 1 + v : 1 + v + height, 1 + u : 1 + u + width]

    steep, flat = np.abs(down), np.abs(across)
    is_across = steep < TAN_22_5 * flat
    is_down = steep > (TAN_22_5 + 2) * flat
    falls = (down < 0) != (across < 0)
    diagonal = np.where(
        falls, (size > at(-1, 1)) & (size > at(1, -1)), (size > at(-1, -1)) & (size > at(1, 1))
    )
    one_way = np.where(is_across, (size > at(0, -1)) & (size >= at(0, 1)), diagonal)
    return np.where(is_down, (size > at(-1, 0)) & (size >= at(1, 0)), one_way)
