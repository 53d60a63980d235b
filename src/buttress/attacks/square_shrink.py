"""What drawing a point into the L1 ball does to its displacement, from sums that are kept sorted.

All coordinates become smaller by one amount, and those below it zero. For a displacement that
differs from a known one in few places the amount, and what it changes, follow from sums over the
known one in the order of its sizes, so that no image is read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

ROUNDS = 8  # of Newton's method; it is exact once no coordinate changes sides


class Values(NamedTuple):
    """Coordinates of a displacement, and the gradient there; (N, K, M) each."""

    delta: Tensor
    slope: Tensor


@dataclass
class Shrunk:
    """A displacement (N, D) under amounts (N, K); sums over its D coordinates, smallest first."""

    size: Tensor  # (N, D)
    sums: Tensor  # (4, N, D + 1) of sizes, their squares, slopes upwards, and gains

    @classmethod
    def of(cls, delta: Tensor, slope: Tensor) -> Shrunk:
        size, order = delta.abs().sort(dim=1)
        upwards = (delta.sign() * slope).gather(1, order)
        parts = torch.stack([size, size.square(), upwards, size * upwards])
        sums = torch.nn.functional.pad(parts.cumsum(2, dtype=torch.float64), (1, 0))
        return cls(size, sums)

    def amount(self, old: Tensor, new: Tensor, radius: float) -> Tensor:
        """(N, K) by how much all must shrink where ``new`` stands in the place of ``old``."""
        lost, come = old.abs().double(), new.abs().double()
        amount = lost.new_zeros(lost.shape[:2])
        for _ in range(ROUNDS):
            length, count = self._over(amount)
            for values, sign in ((lost, -1), (come, 1)):
                over = (values - amount[..., None]).clamp_min_(0)
                length += sign * over.sum(2)
                count += sign * (over > 0).sum(2)
            more = (length - radius).clamp_min(0) / count.clamp_min(1)
            amount = amount + more
            if not bool((more > 1e-9 * radius).any()):
                break
        return amount

    def _over(self, amount: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of what is above an amount, and the number of such coordinates."""
        below = self._below(amount)
        count = self.size.shape[1] - below
        return self._rest(0, below) - amount * count, count

    def effect(self, amount: Tensor) -> tuple[Tensor, Tensor]:
        """(N, K) what shrinking by an amount gains along the slope, and its squared length."""
        below = self._below(amount)
        count = self.size.shape[1] - below
        gain = -amount * self._rest(2, below) - self.sums[3].gather(1, below)
        return gain, self.sums[1].gather(1, below) + amount.square() * count

    def _below(self, amount: Tensor) -> Tensor:
        """(N, K) coordinates that are not above an amount."""
        return torch.searchsorted(self.size, amount.to(self.size.dtype), right=True)

    def _rest(self, which: int, below: Tensor) -> Tensor:
        table = self.sums[which]
        return table[:, -1:] - table.gather(1, below)


def shrunk_effect(values: Values, amount: Tensor) -> tuple[Tensor, Tensor]:
    """The same for single coordinates, summed: (N, K)."""
    move = values.delta.sign() * values.delta.abs().minimum(amount[..., None].to(values.delta))
    return -(move * values.slope).sum(2), move.square().sum(2)
