"""Threats that make an image from parameters, such as a rotation from an angle.

The parameters of an image are a tensor in [0, 1] around 0.5, and the allowed ones are a norm ball
there. So every attack on norm balls moves in them as it moves in pixels.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from buttress.threats.core import Threat
from buttress.threats.norm_ball import Norm, NormBall, parse_eps

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T", bound="ParametricThreat")
CENTER = 0.5
MAX_ROUNDING = 1e-4  # of a pixel value, between two computations of one image


@dataclass(frozen=True, repr=False)
class ParametricThreat(Threat):
    """Images that `apply` makes from the points of `region`, and the image itself."""

    eps: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", parse_eps(self.eps))

    @classmethod
    def from_budget(cls: type[T], kind: str, budget: str) -> T:
        return cls(parse_eps(budget))

    @property
    def budget(self) -> str:
        return f"{self.eps:.12g}"

    def scaled(self: T, factor: float) -> T:
        return replace(self, eps=self.eps * factor)

    @property
    def region(self) -> NormBall:
        """The allowed parameters; all of [0, 1] if not said otherwise."""
        return NormBall("Linf", CENTER)

    @property
    def space(self) -> Norm:
        return self.region.norm

    @abstractmethod
    def parameter_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """The shape of one image's parameters: channels, rows and columns of them."""

    @abstractmethod
    def apply(self, x: Tensor, points: Tensor) -> Tensor:
        """(N, C, H, W) the images of these parameters, differentiable in them."""

    def images_at(self, x: Tensor, points: Tensor) -> Tensor:
        """The same; the images themselves where no change is allowed: snow makes them paler."""
        return x if self.is_trivial else self.apply(x, points)

    def center(self, x: Tensor) -> Tensor:
        """The parameters in the middle of the region."""
        _, channels, height, width = x.shape
        return x.new_full((len(x), *self.parameter_shape((channels, height, width))), CENTER)

    def perturbation_size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(N,) the largest change of a pixel value: images do not tell their parameters."""
        return NormBall("Linf", 1.0).perturbation_size(x, x_adv)

    def excess(self, x: Tensor, x_adv: Tensor, points: Tensor | None = None) -> Tensor:
        is_clean = (x_adv == x).flatten(1).all(1)
        if points is None:
            raise ValueError(f"{self} can only be checked with the parameters of the images")
        outside = self.region.excess(self.center(x), points)
        distance = NormBall("Linf", 1.0).perturbation_size(self.images_at(x, points), x_adv)
        return outside.maximum((distance - MAX_ROUNDING).clamp_min(0)).masked_fill(is_clean, 0)
