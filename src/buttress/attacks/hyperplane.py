"""The shortest way from a point in [0, 1]^d to a hyperplane, inside the box, in each norm."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from buttress.threats.norm_ball import Norm

MAX_NEWTON_ITERATIONS = 60  # of the Newton iteration; it ends by itself after a few
DEVICE_SYNC_INTERVAL = 8  # iterations between two checks of convergence, on an accelerator
INITIAL_TOP_K = 256  # coordinates tried first in L1, where few are needed
MIN_SLOPE = 1e-8


class Hyperplane:
    r"""Hyperplanes with normals w (N, d), and the shortest moves to them inside the box.

    The shortest d with <w, d> = -offset and point + d in the box moves each coordinate towards the
    hyperplane by at most its room p_i. Where even all rooms do not suffice, every coordinate moves
    fully.

    - Linf: all by the same amount, :math:`\sum |w_i| \min(\lambda, p_i)` = abs(offset).
    - L2: by :math:`\min(\lambda |w_i|, p_i)`.
    - L1: the coordinates with the largest abs(w_i) first, fully.
    """

    def __init__(self, norm: Norm, normal: Tensor) -> None:
        self.norm, self.sign, self.size = norm, normal.sign(), normal.abs()
        self.speed: Tensor | None = None
        if norm == "L2":
            self.speed = self.size.masked_fill_(self.size < MIN_SLOPE, 0)
        self.rate = self.size if self.speed is None else self.size * self.speed
        self.whole = self.rate.sum(1)

    def step_lengths(self, point: Tensor, offset: Tensor) -> Tensor:
        """(N, d) how far each coordinate moves, against ``sign`` times the sign of the offset."""
        # The room is 1 - p where the coordinate rises and p where it falls.
        signed_room = (0.5 - point).mul_(self.sign)
        room = signed_room.mul_(-offset.sign()[:, None]).add_(0.5)
        if self.norm == "L1":
            return self._solve_l1(room, offset.abs()[:, None])
        return self._solve_linf_l2(room, offset.abs())

    def norm_of_lengths(self, lengths: Tensor) -> Tensor:
        """(N,) norms of step lengths, none of which is negative."""
        if self.norm == "L2":
            return torch.linalg.vector_norm(lengths, dim=1)
        return lengths.amax(1) if self.norm == "Linf" else lengths.sum(1)

    def _solve_l1(self, room: Tensor, need: Tensor) -> Tensor:
        """Moves of the largest slopes first, each fully, until the need is met."""
        top, indices = self._largest_slopes
        while True:
            limit = room.gather(1, indices)
            gain = top * limit
            gain_before = gain.cumsum(1) - gain
            is_enough = top.shape == self.size.shape or bool(
                (gain_before[:, -1:] + gain[:, -1:] >= need).all()
            )
            if is_enough:
                break
            top, indices = self.size.topk(self.size.shape[1], dim=1)
        lengths = ((need - gain_before) / top.clamp_min(MIN_SLOPE)).clamp_min(0).minimum(limit)
        lengths = lengths.masked_fill(top <= MIN_SLOPE, 0)
        return torch.zeros_like(self.size).scatter_(1, indices, lengths)

    @cached_property
    def _largest_slopes(self) -> tuple[Tensor, Tensor]:
        """Sizes and coordinates of the largest slopes, which all points of a plane share."""
        top = self.size.topk(min(INITIAL_TOP_K, self.size.shape[1]), dim=1)
        return top.values, top.indices

    def _solve_linf_l2(self, room: Tensor, need: Tensor) -> Tensor:
        r"""Moves min(lam * speed_i, room_i) with sum_i size_i * move_i = need; speed 1 if None.

        The sum is concave and piecewise linear in lam, so that Newton's method from the left climbs
        to the root through pieces and never passes it: coordinates that are at the end of their
        room give what they have, the others share the rest.
        """
        total_rate, speed = self.whole, self.speed
        max_gain, saturation = (
            self.size * room,
            room if speed is None else room / speed,
        )  # 0 / 0: no move
        lam = _newton_root(
            need / total_rate.clamp_min(1e-30), need, total_rate, self.rate, max_gain, saturation
        )
        lengths = lam[:, None] if speed is None else lam[:, None] * speed
        if lam.device.type != "cpu" or not lam.isfinite().all():  # inf * 0: no move
            torch.nan_to_num_(lengths, nan=0.0, posinf=torch.inf)
        return lengths.minimum(room)


def _newton_root(
    lam: Tensor,
    need: Tensor,
    total_rate: Tensor,
    rate: Tensor,
    max_gain: Tensor,
    saturation: Tensor,
) -> Tensor:
    """(N,) the roots: where few rows are not there yet, only those go on.

    On an accelerator all rows go on, so that it is waited for every few iterations only.
    """
    is_saturated, is_cpu = torch.empty_like(saturation), lam.device.type == "cpu"
    for iteration in range(MAX_NEWTON_ITERATIONS):
        torch.le(saturation, lam[:, None], out=is_saturated)
        free_rate = total_rate - torch.linalg.vecdot(rate, is_saturated)
        remaining = need - torch.linalg.vecdot(max_gain, is_saturated)
        next_lam = torch.where(free_rate > 1e-6 * total_rate, remaining / free_rate, torch.inf)
        is_unfinished = next_lam > lam * (1 + 1e-6)
        lam = lam.maximum(next_lam)
        if not is_cpu:
            if (iteration + 1) % DEVICE_SYNC_INTERVAL == 0 and not is_unfinished.any():
                break
            continue
        unfinished = is_unfinished.nonzero()[:, 0]
        if len(unfinished) <= len(lam) // 2:
            if len(unfinished):
                tensors = (lam, need, total_rate, rate, max_gain, saturation)
                rows = (t.index_select(0, unfinished) for t in tensors)
                lam[unfinished] = _newton_root(*rows)
            break
    return lam
