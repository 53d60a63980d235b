"""Small windows of the Square attack: what is drawn for many queries at once, and put on a point.

Nothing that is drawn depends on the best point, so that it can be drawn far ahead. Windows of one
query all have one size, and only their pixels are touched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from buttress.attacks.problem import Problem
from buttress.attacks.square_windows import budget, corner, footprint, patterns, signs_of, ups_of
from buttress.streams import mix, shift
from buttress.threat import TINY

INSIDE = 1 - 1e-6  # of eps: the L1 ball that points are projected to

P = TypeVar("P", bound="Patches")


@dataclass
class Patches(ABC):
    """The windows of K queries of each of N images."""

    def __len__(self) -> int:
        """Queries of each image."""
        return int(getattr(self, fields(self)[0].name).shape[1])

    def some(self: P, first: Tensor, count: int) -> P:
        """``count`` queries of each image, from its own first one on."""
        tensors = [getattr(self, field.name) for field in fields(self)]
        n, ahead = tensors[0].shape[:2]
        start = first + torch.arange(n) * ahead
        chosen = (start[:, None] + torch.arange(count)).flatten()
        taken = (t.flatten(0, 1).index_select(0, chosen) for t in tensors)
        return type(self)(*(t.view(n, count, *t.shape[1:]) for t in taken))

    @abstractmethod
    def on(self, problem: Problem, best: Tensor) -> Tensor:
        """(N, K, C, H, W) the points that these queries try, on top of (N, C, H, W)."""


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

    def on(self, problem: Problem, best: Tensor) -> Tensor:
        new = _copies(best, self.place.shape[1])
        new.scatter_(2, self.place, self.value)
        return new.view(*new.shape[:2], *best.shape[1:])


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

    def on(self, problem: Problem, best: Tensor) -> Tensor:
        x, threat, count = problem.x, problem.threat, self.here.shape[1]
        is_l2, delta = threat.norm == "L2", best - x
        inside, outside = _taken(delta, self.here), _taken(delta, self.there) * self.apart

        def mass(values: Tensor) -> Tensor:
            return (values.square() if is_l2 else values.abs()).sum(-1, keepdim=True)

        def length(values: Tensor) -> Tensor:
            return (mass(values).sqrt() if is_l2 else mass(values)) + TINY

        taken = mass(inside) + mass(outside)
        total = mass(delta.flatten(1)).view(-1, 1, 1, 1)
        new = (inside / length(inside)).add_(self.shape)
        new.mul_(budget(problem, total, taken) / length(new))
        if not is_l2:
            moved = _copies(delta, count)
            moved.scatter_(2, self.there, 0.0).scatter_(2, self.here, new.flatten(2))
            copies = x.repeat_interleave(count, 0)
            scale = x.new_full((len(copies),), INSIDE)
            near = threat.project(copies, copies + moved.view_as(copies), scale)
            return near.view(-1, count, *x.shape[1:])
        # The length of the whole is known from its pieces, so that no image is read for it.
        square = total + (mass(new) - taken).sum(2, keepdim=True)
        scale = threat.eps / (square.clamp_min(0).sqrt() + TINY)  # (N, K, 1, 1)
        flat = x.flatten(1)[:, None]
        moved = torch.addcmul(flat, delta.flatten(1)[:, None], scale[..., 0]).clamp_(0, 1)
        clean = _taken(x, torch.cat([self.there, self.here], 1)).flatten(2)
        moved.scatter_(2, self.there, clean[:, :count])
        filled = torch.addcmul(clean[:, count:], new.flatten(2), scale[..., 0]).clamp_(0, 1)
        return moved.scatter_(2, self.here, filled).view(-1, count, *x.shape[1:])


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
