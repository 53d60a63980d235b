"""Gabor noise whose every value is chosen by the adversary (Kang et al., arXiv:1908.08016)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from buttress.threats.core import THREATS
from buttress.threats.parametric import ParametricThreat

if TYPE_CHECKING:
    from torch import Tensor

SPACING = 4  # pixels between values: one in 16 pixels, about the density of 1/14 of the authors
ORIENTATIONS = 4
WAVELENGTH = 5.0  # pixels; the authors draw 4 to 7.7
SOFTNESS = 0.05  # of the range of the noise: values so near to an extreme share its gradient
DEVIATION = 0.25  # of the kernel's side; the authors draw 0.1 to 0.4


@THREATS.register("gabor", paper="arXiv:1908.08016", tags=("parametric", "uar"))
@dataclass(frozen=True, repr=False)
class Gabor(ParametricThreat):
    """x + eps * noise, eps of 255 levels, with noise in [0, 1] from sparse values in [-1, 1].

    Values on a grid are convolved with Gabor kernels (23 pixels, 11 on small images) of four
    orientations, summed and stretched to [0, 1]. Departures from the authors' code: kernels and
    places of values are the same for all images, theirs random, and the adversary mixes all
    orientations; the variance is not normalized locally.
    """

    @property
    def kind(self) -> str:
        return "gabor"

    @classmethod
    def usual_budget(cls, kind: str, size: int) -> str:
        return "25" if size > 64 else "12.5"

    def describe(self) -> str:
        return f"Gabor noise of at most {self.eps:g} of 255 levels may be added, gray"

    def parameter_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        rows, columns = (math.ceil(n / SPACING) for n in image_shape[1:])
        return ORIENTATIONS, rows, columns

    def apply(self, x: Tensor, points: Tensor) -> Tensor:
        from torch.nn import functional as F

        height, width = x.shape[2:]
        kernels = gabor_kernels(11 if min(height, width) <= 64 else 23).to(x)
        half = kernels.shape[2] // 2
        noise = F.conv_transpose2d(2 * points - 1, kernels, stride=SPACING)
        noise = noise[:, :, half : half + height, half : half + width]
        low, high = -_largest(-noise), _largest(noise)
        stretched = (noise - low) / (high - low).clamp_min(1e-6)
        return (x + self.eps / 255 * stretched).clamp(0, 1)


def _largest(noise: Tensor) -> Tensor:
    """(N, 1, 1, 1) the largest value, with the gradient of a soft maximum.

    The exact gradient knows one pixel only, and attacks go back and forth between two.
    """
    import torch

    high, low = noise.amax((2, 3), keepdim=True), noise.amin((2, 3), keepdim=True)
    softness = (SOFTNESS * (high - low)).detach().clamp_min(1e-6)
    soft = softness * torch.logsumexp(noise / softness, (2, 3), keepdim=True)
    return high.detach() + (soft - soft.detach())


@lru_cache
def gabor_kernels(side: int) -> Tensor:
    """(4, 1, side, side) waves under a Gaussian, one per orientation."""
    import torch

    offsets = torch.arange(side, dtype=torch.float64) - side // 2
    rows, columns = offsets[:, None], offsets[None, :]
    envelope = torch.exp(-(rows**2 + columns**2) / (2 * (DEVIATION * side) ** 2))
    angles = [math.pi * k / ORIENTATIONS for k in range(ORIENTATIONS)]
    phases = [columns * math.cos(a) + rows * math.sin(a) for a in angles]
    waves = torch.stack([envelope * torch.cos(2 * math.pi * p / WAVELENGTH) for p in phases])
    return waves[:, None]
