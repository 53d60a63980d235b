"""A camera that moves towards the scene while the shutter is open."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from buttress.data.corruptions.core import CORRUPTIONS, PAPER
from buttress.streams import Streams

LARGEST_MATRIX = 1024  # pixels for which one product with a matrix beats enlarging 26 times


@CORRUPTIONS.register(
    "zoom_blur",
    paper=PAPER,
    tags=("common", "blur"),
    small=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    large=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
)
def zoom_blur(x: Tensor, constants: tuple[float, float], streams: Streams) -> Tensor:
    """The mean of the image and its enlarged copies, from 1 by a step up to a factor."""
    height, width = x.shape[2:]
    if height * width > LARGEST_MATRIX:
        return zoomed(x, *constants)
    matrix = zoom_matrix(height, width, *constants)
    return (x.flatten(2) @ matrix).view_as(x)


def zoomed(x: Tensor, last: float, step: float) -> Tensor:
    # Rounding in this range decides whether the last factor belongs to it, as it did in the paper.
    factors = np.arange(1, last, step).tolist()
    total = x.clone()
    for factor in factors:
        total += enlarged(x, factor)
    return total / (len(factors) + 1)


@lru_cache(maxsize=8)
def zoom_matrix(height: int, width: int, last: float, step: float) -> Tensor:
    """(H W, H W) all enlargements at once: what they make of each single pixel."""
    pixels = torch.eye(height * width, dtype=torch.float64).view(-1, 1, height, width)
    return zoomed(pixels, last, step).flatten(1)


def enlarged(x: Tensor, factor: float) -> Tensor:
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
