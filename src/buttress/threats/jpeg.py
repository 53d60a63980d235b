"""Changes of JPEG coefficients (Kang et al., arXiv:1908.08016)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from buttress.threats.core import THREATS
from buttress.threats.norm_ball import Norm, NormBall, parse_eps
from buttress.threats.parametric import CENTER, ParametricThreat

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 8
MAX_CHANGE = 2.0  # of a coefficient, in L2 and L1
HALF = 0.5  # of each parameter is added to its coefficient, as in the authors' code
NORM_OF = {"jpeg": "Linf", "jpeg-l2": "L2", "jpeg-l1": "L1"}
USUAL = {"jpeg": ("0.125", "0.25"), "jpeg-l2": ("8", "32"), "jpeg-l1": ("64", "4096")}
# The quantization tables of the standard's annex K; rows are vertical frequencies.
LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61), (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56), (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77), (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101), (72, 92, 95, 98, 112, 100, 103, 99),
)  # fmt: skip
CHROMA_CORNER = ((17, 18, 24, 47), (18, 21, 26, 66), (24, 26, 56, 99), (47, 66, 99, 99))


@THREATS.register("jpeg-l1", paper="arXiv:1908.08016", tags=("parametric", "uar"))
@THREATS.register("jpeg-l2", paper="arXiv:1908.08016", tags=("parametric", "uar"))
@THREATS.register("jpeg", paper="arXiv:1908.08016", tags=("parametric", "uar"))
@dataclass(frozen=True, repr=False)
class JPEG(ParametricThreat):
    """Coefficients of a JPEG file change by at most ``eps`` in a norm.

    Blocks of 8 x 8 pixels, in units of the quantization tables, color at half size; at most 2 each
    in L2 and L1. Departure from the authors' code: the change is decompressed and added to the
    image, so that the image itself keeps its colors at full size and no change leaves it as it is.
    """

    norm: Norm = "Linf"

    @classmethod
    def from_budget(cls, kind: str, budget: str) -> JPEG:
        return cls(parse_eps(budget), cast(Norm, NORM_OF[kind]))

    @classmethod
    def usual_budget(cls, kind: str, size: int) -> str:
        return USUAL[kind][size > 64]

    @property
    def kind(self) -> str:
        return next(kind for kind, norm in NORM_OF.items() if norm == self.norm)

    @property
    def region(self) -> NormBall:
        if self.norm == "Linf":
            return NormBall("Linf", CENTER)
        return NormBall(self.norm, self.eps / (2 * MAX_CHANGE))

    def describe(self) -> str:
        return f"the JPEG coefficients may change by an {self.norm} norm of at most {self.eps:g}"

    def parameter_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        channels, height, width = image_shape
        rows, columns = (BLOCK * math.ceil(n / (2 * BLOCK)) for n in (height, width))
        return 6 if channels == 3 else 4, rows, columns

    def apply(self, x: Tensor, points: Tensor) -> Tensor:
        import torch

        height, width = x.shape[2:]
        largest = self.eps if self.norm == "Linf" else MAX_CHANGE
        coefficients = (2 * points - 1) * largest * HALF
        planes = invert_blocks(
            coefficients
            * quantization_tables(points.shape[1])
            .to(x)
            .repeat(1, points.shape[2] // BLOCK, points.shape[3] // BLOCK)
        )
        luminance = join_quarters(planes[:, :4])
        if x.shape[1] == 3:
            blue, red = (
                plane.repeat_interleave(2, 1).repeat_interleave(2, 2)
                for plane in planes[:, 4:].unbind(1)
            )
            change = torch.stack(
                [
                    luminance + 1.402 * red,
                    luminance - 0.344136 * blue - 0.714136 * red,
                    luminance + 1.772 * blue,
                ],
                dim=1,
            )
        else:
            change = luminance[:, None]
        return (x + change[:, :, :height, :width] / 255).clamp(0, 1)


def invert_blocks(coefficients: Tensor) -> Tensor:
    """The inverse cosine transform of every block of (N, C, H, W)."""
    import torch

    n, channels, height, width = coefficients.shape
    blocks = coefficients.view(n, channels, height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    basis = cosine_basis().to(coefficients)
    pixels = torch.einsum("ui,nchuwv,vj->nchiwj", basis, blocks, basis)
    return pixels.reshape(coefficients.shape)


def join_quarters(planes: Tensor) -> Tensor:
    """(N, 2H, 2W) from (N, 4, H, W): four blocks side by side for each block of colors."""
    n, _, height, width = planes.shape
    blocks = planes.view(n, 2, 2, height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    return blocks.permute(0, 3, 1, 4, 5, 2, 6).reshape(n, 2 * height, 2 * width)


@lru_cache
def cosine_basis() -> Tensor:
    """(frequency, pixel) the orthonormal cosine transform of 8 values."""
    import torch

    k = torch.arange(BLOCK, dtype=torch.float64)
    basis = torch.cos((2 * k[None] + 1) * k[:, None] * math.pi / (2 * BLOCK)) * math.sqrt(2 / BLOCK)
    basis[0] /= math.sqrt(2)
    return basis


@lru_cache
def quantization_tables(channels: int) -> Tensor:
    """(channels, 8, 8) luminance for the first four, then color."""
    import torch

    luminance = torch.tensor(LUMINANCE, dtype=torch.float64)
    color = torch.full((BLOCK, BLOCK), 99.0, dtype=torch.float64)
    color[:4, :4] = torch.tensor(CHROMA_CORNER, dtype=torch.float64)
    return torch.stack([luminance] * 4 + [color] * (channels - 4))
