"""Sparse changes: a few pixels or values may become anything in [0, 1] (L0)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from buttress.errors import UserError
from buttress.threats.core import THREATS, SearchSet, Space

if TYPE_CHECKING:
    from torch import Tensor

    from buttress.system.rng import SampleRNG

VALUES = "values"
# A step of PGD_0 (arXiv:1909.05040) changes a value by 30000 / 255 over the 3,072 values of an
# image on average, 0.04: a quarter of this.
MEAN_STEP = 0.16
USUAL_PIXELS = 24  # of an image of 32 x 32


@THREATS.register("L0", paper="arXiv:2006.12834", tags=("sparse",), attack="sparse_pgd")
@dataclass(frozen=True, repr=False)
class SparseChange(SearchSet):
    """At most k pixels, all channels of each, or k single values (``L0:72,values``)."""

    count: int
    by_value: bool = False

    def __post_init__(self) -> None:
        if self.count < 0:
            raise UserError(f"`L0 >= 0` must hold, but got L0:{self.count}")

    @classmethod
    def from_budget(cls, kind: str, budget: str) -> SparseChange:
        count, _, unit = budget.partition(",")
        if not count.strip().isdigit() or unit.strip() not in ("", "pixels", VALUES):
            raise UserError(
                "L0 is written L0:K for K pixels, or L0:K,values, with a whole number K, but got "
                f"L0:{budget}"
            )
        return cls(int(count), unit.strip() == VALUES)

    @classmethod
    def usual_budget(cls, kind: str, size: int) -> str:
        return "100" if size > 64 else f"{max(1, round(USUAL_PIXELS * (size / 32) ** 2))}"

    @property
    def kind(self) -> str:
        return "L0"

    @property
    def budget(self) -> str:
        return f"{self.count},{VALUES}" if self.by_value else f"{self.count}"

    @property
    def eps(self) -> float:  # type: ignore[override]
        return float(self.count)

    @property
    def space(self) -> Space:
        return "L0"

    @property
    def radius(self) -> float:
        return MEAN_STEP

    def scaled(self, factor: float) -> SparseChange:
        return replace(self, count=round(self.count * factor))

    def describe(self) -> str:
        unit = "values" if self.by_value else "pixels"
        return f"at most {self.count} {unit} may change to anything"

    def changed_units(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(N, 1 or C, H, W) which pixels or values differ."""
        is_changed = x_adv != x
        return is_changed if self.by_value else is_changed.any(1, keepdim=True)

    def sum_units(self, values: Tensor) -> Tensor:
        """(N, 1 or C, H, W) values summed over the channels of a pixel, or as they are."""
        return values if self.by_value else values.sum(1, keepdim=True)

    def perturbation_size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(N,) how many pixels or values differ."""
        return self.changed_units(x, x_adv).flatten(1).sum(1).double()

    def excess(self, x: Tensor, x_adv: Tensor, points: Tensor | None = None) -> Tensor:
        return (self.perturbation_size(x, x_adv) - self.count).clamp_min(0)

    def largest_units(self, scores: Tensor) -> Tensor:
        """The mask of each sample's ``count`` largest scores."""
        return rank_units(scores) < self.count

    def project(self, x: Tensor, x_adv: Tensor, scale: Tensor | None = None) -> Tensor:
        """The nearest member: the pixels whose change brings most, clipped to [0, 1].

        Far outside of [0, 1] what a pixel brings grows with its step times the room that it has,
        so that a long step along a gradient ends at the best member of the linear model.
        """
        delta, clipped = x_adv - x, x_adv.clamp(0, 1)
        gain = self.sum_units(delta.square() - (x_adv - clipped).square())
        return clipped.where(self.largest_units(gain), x)

    def step_direction(self, x_t: Tensor, grad: Tensor) -> Tensor:
        """The gradient, scaled so that the mean of its absolute values is one."""
        return scale_to_unit_mean(grad)

    def random_start(self, x: Tensor, rng: SampleRNG, restart: int | Tensor = 0) -> Tensor:
        """Random pixels with random corners of the color cube."""
        scores = replace(rng, purpose=rng.purpose + "/units").draw_uniform(
            self.sum_units(x), restart
        )
        return draw_corners(x, rng, restart).where(self.largest_units(scores), x)

    def random_neighbor(
        self, x: Tensor, best: Tensor, fraction: Tensor, rng: SampleRNG, draw: Tensor
    ) -> Tensor:
        """Some changed pixels are restored, and as many others changed (arXiv:2006.12834)."""
        import torch

        is_changed = self.changed_units(x, best)
        scores = replace(rng, purpose=rng.purpose + "/units").draw_uniform(self.sum_units(x), draw)
        num_new = (fraction * self.count).round().clamp_min(1).clamp_max(self.count)
        num_new = num_new.view(-1, 1, 1, 1)
        is_kept = is_changed & (
            rank_units(scores.masked_fill(~is_changed, -1)) < self.count - num_new
        )
        is_new = ~is_changed & (rank_units(scores.masked_fill(is_changed, -1)) < num_new)
        neighbor = torch.where(is_kept, best, x)
        return torch.where(is_new, draw_corners(x, rng, draw), neighbor)


def rank_units(scores: Tensor) -> Tensor:
    """Of each score its rank in its sample, 0 for the largest."""
    flat = scores.flatten(1)
    order = flat.argsort(dim=1, descending=True, stable=True)
    return order.argsort(1).view_as(scores)


def scale_to_unit_mean(grad: Tensor) -> Tensor:
    mean = grad.abs().flatten(1).mean(1).clamp_min(1e-30)
    return grad / mean.view(-1, 1, 1, 1)


def draw_corners(x: Tensor, rng: SampleRNG, draw: int | Tensor) -> Tensor:
    """Every value 0 or 1 at random."""
    return rng.draw_uniform(x, draw).round_()
