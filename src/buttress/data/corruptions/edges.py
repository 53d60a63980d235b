"""Canny's edge detector on whole batches (Canny 1986), with the conventions of OpenCV."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TAN_22_5 = 0.41421356237309503


def canny(images: Floats, low: float, high: float) -> NDArray[np.bool_]:
    """Where the edges of images (N, H, W) with levels 0 to 255 run.

    The gradient is Sobel's, its size the sum of both parts. An edge is a ridge of it above ``low``
    that is connected to one above ``high``.
    """
    from scipy.ndimage import binary_propagation

    down, across = slope(images, 1, 2), slope(images, 2, 1)
    size = np.abs(down) + np.abs(across)
    candidates = (size > low) & ridges(size, down, across)
    near = np.zeros((3, 3, 3), dtype=bool)
    near[1] = True  # neighbours in the same image only
    found: NDArray[np.bool_] = binary_propagation(
        candidates & (size > high), structure=near, mask=candidates
    )
    return found


def slope(images: Floats, axis: int, other: int) -> Floats:
    """Sobel's derivative along an axis; SciPy's own would also smooth from image to image."""
    from scipy.ndimage import correlate1d

    steps: Floats = correlate1d(images, [-1, 0, 1], axis, mode="nearest")
    return correlate1d(steps, [1, 2, 1], other, mode="nearest")


def ridges(size: Floats, down: Floats, across: Floats) -> NDArray[np.bool_]:
    """Where the gradient is largest along its own direction, of which there are four."""
    around = np.pad(size, ((0, 0), (1, 1), (1, 1)))
    height, width = size.shape[1:]

    def at(v: int, u: int) -> Floats:
        return around[:, 1 + v : 1 + v + height, 1 + u : 1 + u + width]

    steep, flat = np.abs(down), np.abs(across)
    is_across = steep < TAN_22_5 * flat
    is_down = steep > (TAN_22_5 + 2) * flat
    falls = (down < 0) != (across < 0)
    diagonal = np.where(
        falls,
        (size > at(-1, 1)) & (size > at(1, -1)),
        (size > at(-1, -1)) & (size > at(1, 1)),
    )
    one_way = np.where(is_across, (size > at(0, -1)) & (size >= at(0, 1)), diagonal)
    return np.where(is_down, (size > at(-1, 0)) & (size >= at(1, 0)), one_way)
