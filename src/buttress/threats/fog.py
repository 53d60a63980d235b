"""Fog whose every cloud is chosen by the adversary (Kang et al., arXiv:1908.08016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from buttress.threats.core import THREATS
from buttress.threats.parametric import ParametricThreat

if TYPE_CHECKING:
    from torch import Tensor

DECAY = 2.0  # of the offsets from one level of the fractal to the next finer one


@THREATS.register("fog", paper="arXiv:1908.08016", tags=("parametric", "uar"))
@dataclass(frozen=True, repr=False)
class Fog(ParametricThreat):
    """(x + eps * fog) / (max x + eps), with fog in [0, 1] a plasma fractal; eps of 255 levels.

    The parameters are the offsets of the diamond-square algorithm, three maps per level.
    Departures from the authors' code: the map is normalized per image, not over the batch, and the
    diamond step takes its four neighbors (theirs rolls by two).
    """

    @property
    def kind(self) -> str:
        return "fog"

    @classmethod
    def usual_budget(cls, kind: str, size: int) -> str:
        return "512" if size > 64 else "64"  # not published for small images

    def describe(self) -> str:
        return f"fog of strength {self.eps:g} (of 255 levels) may cover the image"

    def parameter_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        size = 1 << max(image_shape[1:]).bit_length()  # the next power of two, and larger
        return 1, size, size

    def apply(self, x: Tensor, points: Tensor) -> Tensor:
        eps, (height, width) = self.eps / 255, x.shape[2:]
        top, left = ((points.shape[2] - n) // 2 for n in (height, width))
        fog = plasma(2 * points[:, 0] - 1)[:, None, top : top + height, left : left + width]
        return ((x + eps * fog) / (x.amax((2, 3), keepdim=True) + eps).clamp_min(1e-6)).clamp(0, 1)


def plasma(offsets: Tensor) -> Tensor:
    """(N, M, M) the plasma fractal of offsets (N, M, M) in [-1, 1], stretched to [0, 1].

    Each point of the map is the mean of four neighbors plus its own offset, of a weight that falls
    with the level.
    """
    import torch

    size, weight = offsets.shape[1], 1.0
    plane, step = offsets.new_zeros(len(offsets), 1, 1), offsets.shape[1]
    while step >= 2:
        half = step // 2
        pairs = plane + plane.roll(-1, 1)
        center = (pairs + pairs.roll(-1, 2)) / 4 + weight * offsets[:, half::step, half::step]
        right = (center + center.roll(1, 1) + plane + plane.roll(-1, 2)) / 4
        below = (center + center.roll(1, 2) + plane + plane.roll(-1, 1)) / 4
        right = right + weight * offsets[:, ::step, half::step]
        below = below + weight * offsets[:, half::step, ::step]
        rows = torch.stack([torch.stack([plane, right], 3), torch.stack([below, center], 3)], 2)
        plane = rows.reshape(len(offsets), size // half, size // half)
        step, weight = half, weight / DECAY
    low, high = plane.amin((1, 2), keepdim=True), plane.amax((1, 2), keepdim=True)
    return (plane - low) / (high - low).clamp_min(1e-6)
