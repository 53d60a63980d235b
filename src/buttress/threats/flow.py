"""Smooth displacement fields: the elastic distortion of arXiv:1908.08016."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from buttress.threats.core import THREATS
from buttress.threats.parametric import ParametricThreat
from buttress.threats.spatial import sample_at

if TYPE_CHECKING:
    from torch import Tensor


@THREATS.register("flow", paper="arXiv:1908.08016", tags=("parametric", "uar"))
@dataclass(frozen=True, repr=False)
class Flow(ParametricThreat):
    """Every pixel moves by at most ``eps`` pixels in each direction, smoothly.

    A field of displacements is smoothed with a Gaussian kernel (25 pixels, deviation 3 at 224
    pixels, in proportion at other sizes, at least 5 pixels), then the image is resampled along it.
    Departure from the authors' code: eps is in distances of pixels, theirs in 1/size of the side.
    """

    @property
    def kind(self) -> str:
        return "flow"

    @classmethod
    def usual_budget(cls, kind: str, size: int) -> str:
        return "2" if size > 64 else "0.5"

    def describe(self) -> str:
        return f"each pixel may move by at most {self.eps:g} pixels, smoothly over the image"

    def parameter_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        return 2, image_shape[1], image_shape[2]

    def apply(self, x: Tensor, points: Tensor) -> Tensor:
        import torch

        flow = smooth((2 * points - 1) * self.eps)
        rows, columns = (
            torch.arange(n, device=x.device, dtype=x.dtype) - (n - 1) / 2 for n in x.shape[2:]
        )
        return sample_at(x, columns + flow[:, 0], rows[:, None] + flow[:, 1], "border")


def smooth(fields: Tensor) -> Tensor:
    """Fields (N, C, H, W) smoothed with the kernel of their size, mirrored at the border."""
    from torch.nn import functional as F

    height, width = fields.shape[2:]
    kernel = gaussian_kernel(min(height, width)).to(fields)
    half, channels = len(kernel) // 2, fields.shape[1]
    mode = "reflect" if half < min(height, width) else "replicate"
    padded = F.pad(fields, (half,) * 4, mode=mode)
    down = F.conv2d(padded, kernel.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(down, kernel.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


@lru_cache
def gaussian_kernel(size: int) -> Tensor:
    """(taps,) the kernel for images of this size."""
    import torch

    half, deviation = max(2, round(12 * size / 224)), 3 * size / 224
    offsets = torch.arange(-half, half + 1, dtype=torch.float64)
    weights = torch.exp(-(offsets**2) / (2 * deviation**2))
    return weights / weights.sum()
