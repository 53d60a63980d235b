"""Small windows of the Square attack: what is drawn for many queries at once, and put on a point.

Nothing that is drawn depends on the best point, so that it can be drawn far ahead. Windows of one
query all have one size, and only their pixels are touched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from buttress.attacks.problem import Problem
from buttress.attacks.square_shrink import Shrunk, Values, shrunk_effect
from buttress.attacks.square_windows import budget, corner, footprint, patterns, signs_of, ups_of
from buttress.streams import mix, shift
from buttress.threat import TINY

INSIDE = 1 - 1e-6  # of eps: the L1 ball that points are projected to
NOTHING = 3e-5  # of eps: both windows were empty, and only what INSIDE leaves free was moved

P = TypeVar("P", bound="Patches")
Rows = Tensor | slice
ALL = slice(None)


class Effect(NamedTuple):
    """What queries do where a model is linear."""

    change: Tensor  # (N, K) of the margin
    size: Tensor  # (N, K) how far the point moves, in L2


@dataclass
class Patches(ABC):
    """The windows of K queries of each of N images."""

    def __len__(self) -> int:
        """Queries of each image."""
        return int(getattr(self, fields(self)[0].name).shape[1])

    def pick(self: P, rows: Tensor, which: Tensor) -> P:
        """(R, Q) queries, of the images ``rows`` (R,) the queries ``which`` (R, Q)."""
        chosen = (rows[:, None] * len(self) + which).flatten()
        tensors = (getattr(self, field.name).flatten(0, 1) for field in fields(self))
        taken = (t.index_select(0, chosen) for t in tensors)
        return type(self)(*(t.view(*which.shape, *t.shape[1:]) for t in taken))

    @abstractmethod
    def on(self, problem: Problem, best: Tensor, rows: Rows = ALL) -> Tensor:
        """(N, K, C, H, W) the points that these queries try, on top of ``best`` (N, C, H, W).

        ``rows`` says which images of the problem those are.
        """

    @abstractmethod
    def effect(self, problem: Problem, best: Tensor, slope: Tensor, rows: Rows = ALL) -> Effect:
        """What they change where the gradient of the margin is ``slope`` (N, C, H, W)."""


def draw_patches(problem: Problem, side: int, bits: Tensor) -> Patches:
    """The windows of the queries with these bits (N, K)."""
    kind = Corners if problem.threat.norm == "Linf" else Masses
    return kind.drawn(problem, side, bits)


@dataclass
class Corners(Patches):
    """Linf: squares of the highest or the lowest values, one choice per channel."""

    place: Tensor  # (N, K, C * side * side) int64
    value: Tensor  # the same

    @classmethod
    def drawn(cls, problem: Problem, side: int, bits: Tensor) -> Corners:
        assert problem.bounds is not None
        channels = problem.x.shape[1]
        place = _places(bits, side, problem.x.shape)
        low, high = (_taken(bound, place) for bound in problem.bounds)
        up = ups_of(bits.flatten(), channels).to(low.dtype).view(*bits.shape, channels, 1)
        return cls(place, torch.lerp(low, high, up).flatten(2))

    def on(self, problem: Problem, best: Tensor, rows: Rows = ALL) -> Tensor:
        new = _copies(best, self.place.shape[1])
        new.scatter_(2, self.place, self.value)
        return new.view(*new.shape[:2], *best.shape[1:])

    def effect(self, problem: Problem, best: Tensor, slope: Tensor, rows: Rows = ALL) -> Effect:
        move = self.value - _taken(best, self.place).flatten(2)
        rate = _taken(slope, self.place).flatten(2)
        return Effect(torch.linalg.vecdot(move, rate), torch.linalg.vecdot(move, move).sqrt_())


class Move(NamedTuple):
    """What a query in L2 or L1 does to a displacement, before it is scaled to the ball."""

    inside: Tensor  # (N, K, C, pixels) what was in the first window
    outside: Tensor  # what was in the second and not in the first
    new: Tensor  # what comes into the first
    scale: Tensor  # (N, K, 1, 1) L2: what all of it is multiplied with
    rest: Tensor  # (N, K, 1, 1) L2: the square of what neither window touches


@dataclass
class Masses(Patches):
    """L2 and L1: the mass of two windows is put into the first, in a new shape."""

    here: Tensor  # (N, K, C * side * side) int64
    there: Tensor  # the same, of the window that loses its mass
    apart: Tensor  # (N, K, 1, side * side) 0 where the second window meets the first, else 1
    shape: Tensor  # (N, K, C, side * side) two opposite bumps

    @classmethod
    def drawn(cls, problem: Problem, side: int, bits: Tensor) -> Masses:
        x, norm, more = problem.x, problem.threat.norm, mix(bits)
        here, there = (_places(b, side, x.shape) for b in (bits, more))
        bumps = patterns(side, norm)[shift(more, 40) & 1, side].to(x).flatten(2)[:, :, None]
        signs = signs_of(bits.flatten(), x.shape[1], x).view(*bits.shape, -1, 1)
        apart = (~_overlap(bits, more, side, x.shape)).to(x.dtype)
        return cls(here, there, apart, bumps * signs)

    def on(self, problem: Problem, best: Tensor, rows: Rows = ALL) -> Tensor:
        x, threat, count = problem.x[rows], problem.threat, self.here.shape[1]
        delta = best - x
        move = self._move(problem, delta)
        if threat.norm == "L1":
            moved = _copies(delta, count)
            moved.scatter_(2, self.there, 0.0).scatter_(2, self.here, move.new.flatten(2))
            copies = x.repeat_interleave(count, 0)
            scale = x.new_full((len(copies),), INSIDE)
            near = threat.project(copies, copies + moved.view_as(copies), scale)
            return near.view(-1, count, *x.shape[1:])
        scale, flat = move.scale[..., 0], x.flatten(1)[:, None]
        moved = torch.addcmul(flat, delta.flatten(1)[:, None], scale).clamp_(0, 1)
        clean = _taken(x, torch.cat([self.there, self.here], 1)).flatten(2)
        moved.scatter_(2, self.there, clean[:, :count])
        filled = torch.addcmul(clean[:, count:], move.new.flatten(2), scale).clamp_(0, 1)
        return moved.scatter_(2, self.here, filled).view(-1, count, *x.shape[1:])

    def effect(self, problem: Problem, best: Tensor, slope: Tensor, rows: Rows = ALL) -> Effect:
        """From the pieces; what the box cuts off is left out."""
        delta = best - problem.x[rows]
        if problem.threat.norm == "L1":
            return self._effect_l1(problem, delta, slope)
        move, whole = self._move(problem, delta), (delta * slope).flatten(1).sum(1)[:, None]
        here, there = _taken(slope, self.here), _taken(slope, self.there)
        scale = move.scale[..., 0, 0]
        gained = ((move.new - move.inside) * here - move.outside * there).flatten(2).sum(2)
        change = (scale - 1) * whole + scale * gained
        square = (scale - 1).square() * move.rest[..., 0, 0] + (
            (move.scale * move.new - move.inside).square() + move.outside.square()
        ).flatten(2).sum(2)
        return Effect(change, square.sqrt_())

    def _effect_l1(self, problem: Problem, delta: Tensor, slope: Tensor) -> Effect:
        """Two windows change, then all that there is shrinks into the ball."""
        move = self._move(problem, delta)
        here, there = _taken(slope, self.here).flatten(2), _taken(slope, self.there).flatten(2)
        inside, outside, new = (v.flatten(2) for v in move[:3])
        old = Values(torch.cat([inside, outside], 2), torch.cat([here, there], 2))
        base = Shrunk.of(delta.flatten(1), slope.flatten(1))
        amount = base.amount(old.delta, new, INSIDE * problem.threat.eps)
        left = new.sign() * (new.abs() - amount[..., None].to(new)).clamp_min_(0)
        change, square = base.effect(amount)
        gain, length = shrunk_effect(old, amount)  # the windows were counted as if they stayed
        change = change - gain + ((left - inside) * here - outside * there).sum(2)
        square = square - length + ((left - inside).square() + outside.square()).sum(2)
        size = square.clamp_min_(0).sqrt_().to(slope)
        return Effect(change.to(slope), size.masked_fill_(size < NOTHING * problem.threat.eps, 0))

    def _move(self, problem: Problem, delta: Tensor) -> Move:
        """What is taken away and put in its place."""
        is_l2 = problem.threat.norm == "L2"
        inside, outside = _taken(delta, self.here), _taken(delta, self.there) * self.apart

        def mass(values: Tensor) -> Tensor:
            return (values.square() if is_l2 else values.abs()).sum(-1, keepdim=True)

        def length(values: Tensor) -> Tensor:
            return (mass(values).sqrt() if is_l2 else mass(values)) + TINY

        taken = mass(inside) + mass(outside)
        total = mass(delta.flatten(1)).view(-1, 1, 1, 1)
        new = (inside / length(inside)).add_(self.shape)
        new.mul_(budget(problem, total, taken) / length(new))
        # The length of the whole is known from its pieces, so that no image is read for it.
        square = total + (mass(new) - taken).sum(2, keepdim=True)
        scale = problem.threat.eps / (square.clamp_min(0).sqrt() + TINY)
        return Move(inside, outside, new, scale, (total - taken.sum(2, keepdim=True)).clamp_min_(0))


def _copies(best: Tensor, count: int) -> Tensor:
    """(N, K, pixels) each image several times."""
    return best.flatten(1)[:, None].repeat(1, count, 1)


def _places(bits: Tensor, side: int, shape: torch.Size) -> Tensor:
    """(N, K, C * side * side) the pixels of each window, as places in the image."""
    top, left = corner(bits, torch.tensor(side), shape)
    return (top * shape[-1] + left)[:, :, None] + footprint(side, *shape[1:])


def _taken(values: Tensor, place: Tensor) -> Tensor:
    """(N, K, C, pixels) the values (N, C, H, W) at the pixels of windows."""
    n, count = place.shape[:2]
    found = values.flatten(1).gather(1, place.view(n, -1))
    return found.view(n, count, values.shape[1], -1)


def _overlap(bits: Tensor, more: Tensor, side: int, shape: torch.Size) -> Tensor:
    """(N, K, 1, pixels) which pixels of the second window are in the first too."""
    across = torch.arange(side)
    first, second = (corner(b, torch.tensor(side), shape) for b in (bits, more))
    down, along = (
        ((b - a)[:, :, None] + across >= 0) & ((b - a)[:, :, None] + across < side)
        for a, b in zip(first, second, strict=True)
    )
    return (down[..., :, None] & along[..., None, :]).flatten(2)[:, :, None]
