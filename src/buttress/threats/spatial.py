"""Rotations and translations (Engstrom et al., arXiv:1712.02779)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from buttress.errors import UserError
from buttress.threats.core import THREATS
from buttress.threats.norm_ball import parse_eps
from buttress.threats.parametric import ParametricThreat

if TYPE_CHECKING:
    from torch import Tensor

USUAL_ROTATION = 30  # degrees


@THREATS.register("spatial", paper="arXiv:1712.02779", tags=("parametric",), attack="grid")
@dataclass(frozen=True, repr=False)
class Spatial(ParametricThreat):
    """Rotation by at most ``eps`` degrees, then translation by at most so many pixels.

    Written ``spatial:30,3``. Bilinear resampling; what comes in from outside is black.
    """

    translation: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "translation", parse_eps(self.translation))

    @classmethod
    def from_budget(cls, kind: str, budget: str) -> Spatial:
        rotation, sep, translation = budget.partition(",")
        if not sep:
            raise UserError(
                "spatial is written spatial:DEGREES,PIXELS, like spatial:30,3, but got "
                f"spatial:{budget}"
            )
        return cls(parse_eps(rotation), parse_eps(translation))

    @classmethod
    def usual_budget(cls, kind: str, size: int) -> str:
        pixels = 24 if size == 224 else round(3 * size / 32, 2)
        return f"{USUAL_ROTATION},{pixels:g}"

    @property
    def kind(self) -> str:
        return "spatial"

    @property
    def budget(self) -> str:
        return f"{self.eps:.12g},{self.translation:.12g}"

    @property
    def is_trivial(self) -> bool:
        return self.eps == 0 and self.translation == 0

    def scaled(self, factor: float) -> Spatial:
        return replace(self, eps=self.eps * factor, translation=self.translation * factor)

    def describe(self) -> str:
        return (
            f"the image may be rotated by at most {self.eps:g} degrees and moved by at most "
            f"{self.translation:g} pixels in each direction"
        )

    def parameter_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        return 3, 1, 1  # the angle, and the moves right and down

    def apply(self, x: Tensor, points: Tensor) -> Tensor:
        import torch

        angle, right, down = (2 * points.flatten(1) - 1).split(1, 1)
        angle = torch.deg2rad(angle * self.eps)[:, :, None]
        height, width = x.shape[2:]
        rows, columns = (
            torch.arange(n, device=x.device, dtype=x.dtype) - (n - 1) / 2 for n in (height, width)
        )
        columns = columns[None, None, :] - right[:, :, None] * self.translation
        rows = rows[None, :, None] - down[:, :, None] * self.translation
        source_x = columns * angle.cos() + rows * angle.sin()
        source_y = rows * angle.cos() - columns * angle.sin()
        return sample_at(x, source_x, source_y)

    def grid(self, angles: int, shifts: int) -> Tensor:
        """(angles * shifts * shifts, 3, 1, 1) a grid over all parameters, ends included."""
        import torch

        axes = (torch.linspace(0, 1, n) if n > 1 else torch.tensor([0.5]) for n in (angles, shifts))
        angle, shift = axes
        return torch.cartesian_prod(angle, shift, shift)[:, :, None, None]


def sample_at(x: Tensor, source_x: Tensor, source_y: Tensor, padding: str = "zeros") -> Tensor:
    """Images resampled at pixels (N, H, W) counted from the middle, bilinearly."""
    import torch
    from torch.nn import functional as F

    height, width = x.shape[2:]
    normalized = source_x * (2 / max(1, width - 1)), source_y * (2 / max(1, height - 1))
    grid = torch.stack(torch.broadcast_tensors(*normalized), dim=3)
    resampled = F.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=True)
    return resampled.clamp(0, 1)
