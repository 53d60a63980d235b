"""Gaussian smoothing of whole batches: one matrix for the rows, one for the columns.

The matrices are what SciPy's filter makes of the unit matrix, so that borders are SciPy's too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Border = Literal["nearest", "reflect"]


def smooth(x: Tensor, sigma: float, border: Border = "nearest", truncate: float = 4.0) -> Tensor:
    """Images (..., H, W) under a Gaussian of ``sigma`` pixels, cut off at ``truncate`` sigmas."""
    if int(truncate * sigma + 0.5) == 0:
        return x
    down = _matrix(x.shape[-2], sigma, border, truncate)
    across = _matrix(x.shape[-1], sigma, border, truncate)
    return down @ (x @ across.T)


@lru_cache(maxsize=32)
def _matrix(side: int, sigma: float, border: Border, truncate: float) -> Tensor:
    from scipy.ndimage import gaussian_filter1d

    unit = np.eye(side)
    return torch.from_numpy(gaussian_filter1d(unit, sigma, 0, mode=border, truncate=truncate))
