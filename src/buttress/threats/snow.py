"""Snow whose every flake is chosen by the adversary (Kang et al., arXiv:1908.08016)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from buttress.threats.core import THREATS
from buttress.threats.parametric import ParametricThreat

if TYPE_CHECKING:
    from torch import Tensor

SPACING = 4  # pixels between the flakes of one kind
MEAN_INTENSITY = 0.2  # of a kind of flakes, at most; also the scale of intensities
DISCOLOR = 0.25
# Where the streaks of flakes end, relative to half the kernel, and how wide they are, in pixels.
STREAKS = (
    (1.0, 0.5, 1), (0.5, 1.0, 1), (0.7, 0.7, 1), (1.0, 0.7, 1), (0.5, 0.5, 3), (0.9, 0.6, 3),
    (0.5, 0.7, 5),
)  # fmt: skip


@THREATS.register("snow", paper="arXiv:1908.08016", tags=("parametric", "uar"))
@dataclass(frozen=True, repr=False)
class Snow(ParametricThreat):
    """A paler image plus ``eps`` times snow: streaks on seven grids, each flake of its intensity.

    A flake's intensity is exp(-u / 0.2) of a parameter u in [0, 1], and to the fourth power in the
    image; the mean over the flakes of a kind is at most 0.2. Departures from the authors' code:
    the streaks are the same for all images, shorter on smaller ones, and the mean is taken over the
    image, theirs over blocks of 8 x 8 flakes. Where the mean is at its bound, the gradient is the
    projected one, so that less snow of a kind can be chosen again (`_bound_mean`).
    """

    @property
    def kind(self) -> str:
        return "snow"

    @classmethod
    def usual_budget(cls, kind: str, size: int) -> str:
        return "0.25" if size > 64 else "0.125"

    def describe(self) -> str:
        return f"snow of strength {self.eps:g} may fall on the image, which becomes paler"

    def parameter_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        rows, columns = (math.ceil(n / SPACING) for n in image_shape[1:])
        return len(STREAKS), rows, columns

    def apply(self, x: Tensor, points: Tensor) -> Tensor:
        import torch
        from torch.nn import functional as F

        height, width = x.shape[2:]
        intensity = _bound_mean(torch.exp((points - 1) / MEAN_INTENSITY))
        kernels = streak_kernels(min(height, width)).to(x)
        flakes = _spread_flakes(intensity**4)
        snow = F.conv2d(flakes, kernels, padding=kernels.shape[2] // 2)[:, :, :height, :width]
        weights = (0.2126, 0.7152, 0.0722) if x.shape[1] == 3 else (1 / x.shape[1],) * x.shape[1]
        luminance = torch.einsum("nchw,c->nhw", x, x.new_tensor(weights))[:, None]
        paler = (1 - DISCOLOR) * x + DISCOLOR * x.maximum(1.5 * luminance + 0.5)
        return (paler + self.eps * snow).clamp(0, 1)


def _bound_mean(intensity: Tensor) -> Tensor:
    """Intensities (N, K, H, W) scaled down where the mean of a kind exceeds its bound.

    The scaled flakes do not change with the sum of those given, so the exact gradient is zero
    along it, and a kind of flakes that only harms the attack could never become paler. In
    the backward pass this component is removed only where more snow would raise the loss, as a
    projection onto the bound does.
    """
    import torch

    mean = intensity.mean((2, 3), keepdim=True)
    scale = (MEAN_INTENSITY / mean).clamp_max(1).detach()
    bounded = intensity * scale
    if bounded.requires_grad:
        is_bound, weights = scale < 1, (intensity / mean).detach()

        def project(grad: Tensor) -> Tensor:
            along_sum = (grad * weights).mean((2, 3), keepdim=True)
            return torch.where(is_bound, grad - along_sum.clamp_min(0), grad)

        bounded.register_hook(project)
    return bounded


def _spread_flakes(intensity: Tensor) -> Tensor:
    """(N, 7, 4H, 4W) flakes of (N, 7, H, W), every fourth pixel, each kind at its own offset."""
    import torch

    n, kinds, rows, columns = intensity.shape
    offsets = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)]
    cells = intensity.new_zeros(kinds, SPACING, SPACING)
    for kind, (down, right) in enumerate(offsets):
        cells[kind, down, right] = 1
    flakes = torch.einsum("nkhw,kij->nkhiwj", intensity, cells)
    return flakes.reshape(n, kinds, rows * SPACING, columns * SPACING)


@lru_cache
def streak_kernels(size: int) -> Tensor:
    """(1, 7, K, K) streaks through the middle, 13 pixels long at 224 pixels, at least 5."""
    import torch

    half = max(2, round(6 * size / 224))
    offsets = torch.arange(-half, half + 1, dtype=torch.float64)
    rows, columns = offsets[:, None], offsets[None, :]
    kernels = []
    for down, right, width in STREAKS:
        length = math.hypot(down, right)
        along = ((rows * down + columns * right) / length).clamp(-half * length, half * length)
        distance = torch.hypot(rows - along * down / length, columns - along * right / length)
        kernels.append((width * half / 12 + 0.5 - distance).clamp(0, 1))
    return torch.stack(kernels)[None]
