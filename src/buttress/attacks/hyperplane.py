"""The shortest way from a point in [0, 1]^d to a hyperplane, inside the box, in each norm."""

from __future__ import annotations

import torch
from torch import Tensor

from buttress.threat import Norm

ROUNDS = 60  # of the Newton iteration; it ends by itself after a few
TOP = 256  # coordinates tried first in L1, where few are needed
IMMOVABLE = 1e-8


def nearest_move(norm: Norm, slope: Tensor, point: Tensor, gap: Tensor) -> Tensor:
    r"""(N, d) the shortest d with <slope, d> = -gap and point + d in the box.

    Each coordinate moves towards the hyperplane by at most its room p_i. Where even all rooms do
    not suffice, every coordinate moves fully.

    - Linf: all by the same amount, :math:`\sum |w_i| \min(\lambda, p_i) = |gap|`.
    - L2: by :math:`\min(\lambda |w_i|, p_i)`.
    - L1: the coordinates with the largest slopes first, fully.
    """
    plane = Plane(norm, slope)
    return plane.amounts(point, gap).mul_(plane.sign).mul_(-gap.sign()[:, None])


class Plane:
    """Hyperplanes of given slopes (N, d); what several points need of them is computed once."""

    def __init__(self, norm: Norm, slope: Tensor) -> None:
        self.norm, self.sign, self.size = norm, slope.sign(), slope.abs()
        self.speed: Tensor | None = None
        if norm == "L2":
            self.speed = self.size.masked_fill_(self.size < IMMOVABLE, 0)
        self.rate = self.size if self.speed is None else self.size * self.speed
        self.whole = self.rate.sum(1)

    def amounts(self, point: Tensor, gap: Tensor) -> Tensor:
        """(N, d) how far each coordinate moves, against ``sign`` times the sign of the gap."""
        # The room is 1 - p where the coordinate rises and p where it falls.
        rises = (0.5 - point).mul_(self.sign)
        room = rises.mul_(-gap.sign()[:, None]).add_(0.5)
        if self.norm == "L1":
            return _greedy(self.size, room, gap.abs()[:, None])
        return self._common(room, gap.abs())

    def _common(self, room: Tensor, need: Tensor) -> Tensor:
        r"""Moves min(lam * speed_i, room_i) with sum_i size_i * move_i = need; speed 1 if None.

        The sum is concave and piecewise linear in lam, so that Newton's method from the left climbs
        to the root through pieces and never passes it: coordinates that are at the end of their
        room give what they have, the others share the rest.
        """
        whole, speed = self.whole, self.speed
        given, full = self.size * room, room if speed is None else room / speed  # 0 / 0: no move
        lam = _climbed(need / whole.clamp_min(1e-30), need, whole, self.rate, given, full)
        far = lam[:, None] if speed is None else lam[:, None] * speed
        return torch.nan_to_num_(far, nan=0.0, posinf=torch.inf).minimum(room)


def _climbed(
    lam: Tensor, need: Tensor, whole: Tensor, rate: Tensor, given: Tensor, full: Tensor
) -> Tensor:
    """(N,) the roots: where few rows are not there yet, only those go on."""
    shut = torch.empty_like(full)
    for _ in range(ROUNDS):
        torch.le(full, lam[:, None], out=shut)
        free = whole - torch.linalg.vecdot(rate, shut)
        rest = need - torch.linalg.vecdot(given, shut)
        better = torch.where(free > 1e-6 * whole, rest / free, torch.inf)
        moving = (better > lam * (1 + 1e-6)).nonzero()[:, 0]
        lam = lam.maximum(better)
        if len(moving) <= len(lam) // 2:
            if len(moving):
                rows = (t[moving] for t in (lam, need, whole, rate, given, full))
                lam[moving] = _climbed(*rows)
            break
    return lam


def _greedy(size: Tensor, room: Tensor, need: Tensor) -> Tensor:
    """Moves of the largest slopes first, each fully, until the need is met."""
    count = min(TOP, size.shape[1])
    while True:
        top, place = size.topk(count, dim=1)
        limit = room.gather(1, place)
        gain = top * limit
        before = gain.cumsum(1) - gain
        if count == size.shape[1] or bool((before[:, -1:] + gain[:, -1:] >= need).all()):
            break
        count = size.shape[1]
    share = ((need - before) / top.clamp_min(IMMOVABLE)).clamp_min(0).minimum(limit)
    share = share.masked_fill(top <= IMMOVABLE, 0)
    return torch.zeros_like(size).scatter_(1, place, share)
