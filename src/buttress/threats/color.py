"""Smooth maps of colors, one per image (Laidlaw and Feizi, arXiv:1906.00001)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from buttress.errors import UserError
from buttress.threats.core import THREATS
from buttress.threats.parametric import ParametricThreat

if TYPE_CHECKING:
    from torch import Tensor

GRID = 8  # corners of the map along each channel


@THREATS.register("color", paper="arXiv:1906.00001", tags=("parametric",))
@dataclass(frozen=True, repr=False)
class Color(ParametricThreat):
    """All pixels of one color become one other color, at most ``eps`` away in each channel.

    The map is given at the corners of a grid over the colors and linear between them, so that
    like colors stay alike. Departures from the paper: RGB in place of CIELUV, and a grid of 8 x 8
    x 8 corners in place of a penalty on rough maps of a finer grid.
    """

    @property
    def kind(self) -> str:
        return "color"

    @classmethod
    def usual_budget(cls, kind: str, size: int) -> str:
        return "0.06"

    def describe(self) -> str:
        return f"each color may become another at most {self.eps:g} away in each channel, smoothly"

    def parameter_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        if image_shape[0] not in (1, 3):
            raise UserError(f"color needs images of 1 or 3 channels, but got {image_shape[0]}")
        return (1, 1, GRID) if image_shape[0] == 1 else (3, GRID, GRID * GRID)

    def apply(self, x: Tensor, points: Tensor) -> Tensor:
        from torch.nn import functional as F

        shifts, n, channels = (2 * points - 1) * self.eps, len(x), x.shape[1]
        if channels == 1:
            grid = F.pad(2 * x[:, 0, :, :, None] - 1, (0, 1))
            moved = F.grid_sample(shifts, grid, padding_mode="border", align_corners=True)
        else:
            corners = shifts.view(n, channels, GRID, GRID, GRID)
            grid = (2 * x - 1).permute(0, 2, 3, 1)[:, None]
            moved = F.grid_sample(corners, grid, padding_mode="border", align_corners=True)[:, :, 0]
        return (x + moved).clamp(0, 1)
