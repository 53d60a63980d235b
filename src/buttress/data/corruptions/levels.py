"""Between images in [0, 1] and the 256 levels of 8-bit images, in float64."""

from __future__ import annotations

from torch import Tensor

# What arithmetic leaves just below a level is that level: float64 errs by far less than this.
HAIR = 1e-6


def to_levels(x: Tensor) -> Tensor:
    """Images in [0, 1] as whole numbers from 0 to 255, the nearest, in float64."""
    return x.double().mul(255).round_()


def whole(values: Tensor) -> Tensor:
    """Values from 0 to 255 with their fractions cut off, as the published arrays have it."""
    return (values + HAIR).floor_()


def grey(x: Tensor) -> Tensor:
    """(N, 1, H, W) the luma of Rec. 601."""
    if x.shape[1] == 1:
        return x
    return 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]
