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

from buttress.attacks.core import AttackState
from buttress.attacks.problem import Problem
from buttress.attacks.square.windows import (
    channel_budget,
    pattern_bank,
    random_bits,
    random_signs,
    window_corner,
    window_pixels,
)
from buttress.system.rng import logical_shift_right, splitmix64
from buttress.threats.norm_ball import TINY

L1_MARGIN = 1 - 1e-6  # of eps: the L1 ball that points are projected to

P = TypeVar("P", bound="WindowProposals")
ImageRows = Tensor | slice
ALL_IMAGES = slice(None)


@dataclass
class WindowProposals(ABC):
    """The windows of K queries of each of N images."""

    def __len__(self) -> int:
        """Queries of each image."""
        return int(getattr(self, fields(self)[0].name).shape[1])

    def select_queries(self: P, rows: Tensor, queries: Tensor) -> P:
        """(R, Q) queries, of the images ``rows`` (R,) the queries ``queries`` (R, Q)."""
        flat_index = (rows[:, None] * len(self) + queries).flatten()
        tensors = (getattr(self, field.name).flatten(0, 1) for field in fields(self))
        selected = (t.index_select(0, flat_index) for t in tensors)
        return type(self)(*(t.view(*queries.shape, *t.shape[1:]) for t in selected))

    @abstractmethod
    def apply_to(self, problem: Problem, best: Tensor, rows: ImageRows = ALL_IMAGES) -> Tensor:
        """(N, K, C, H, W) the points that these queries try, on top of ``best`` (N, C, H, W).

        ``rows`` says which images of the problem those are.
        """


def draw_proposals(problem: Problem, side: int, bits: Tensor) -> WindowProposals:
    """The windows of the queries with these bits (N, K)."""
    proposal_class = LinfProposals if problem.ball.norm == "Linf" else LpProposals
    return proposal_class.draw(problem, side, bits)


@dataclass
class LinfProposals(WindowProposals):
    """Linf: squares of the highest or the lowest values, one choice per channel."""

    pixels: Tensor  # (N, K, C * side * side) int64
    values: Tensor  # the same

    @classmethod
    def draw(cls, problem: Problem, side: int, bits: Tensor) -> LinfProposals:
        assert problem.bounds is not None
        channels = problem.x.shape[1]
        pixels = _pixel_indices(bits, side, problem.x.shape)
        low, high = (_gather_pixels(bound, pixels) for bound in problem.bounds)
        up = random_bits(bits.flatten(), channels).to(low.dtype).view(*bits.shape, channels, 1)
        return cls(pixels, torch.lerp(low, high, up).flatten(2))

    def apply_to(self, problem: Problem, best: Tensor, rows: ImageRows = ALL_IMAGES) -> Tensor:
        points = _repeat_images(best, self.pixels.shape[1])
        points.scatter_(2, self.pixels, self.values)
        return points.view(*points.shape[:2], *best.shape[1:])


class MassMove(NamedTuple):
    """What a query in L2 or L1 does to a displacement, before it is scaled to the ball."""

    new_values: Tensor  # (N, K, C, pixels) what comes into the first window
    scale: Tensor  # (N, K, 1, 1) L2: what all of it is multiplied with


@dataclass
class LpProposals(WindowProposals):
    """L2 and L1: the mass of two windows is put into the first, in a new shape."""

    first_pixels: Tensor  # (N, K, C * side * side) int64
    second_pixels: Tensor  # the same, of the window that loses its mass
    # (N, K, 1, side * side) 0 where the second window meets the first, else 1.
    is_second_only: Tensor
    pattern: Tensor  # (N, K, C, side * side) two opposite bumps

    @classmethod
    def draw(cls, problem: Problem, side: int, bits: Tensor) -> LpProposals:
        x, norm, second_bits = problem.x, problem.ball.norm, splitmix64(bits)
        first_pixels, second_pixels = (
            _pixel_indices(b, side, x.shape) for b in (bits, second_bits)
        )
        bumps = (
            pattern_bank(side, norm)[logical_shift_right(second_bits, 40) & 1, side]
            .to(x)
            .flatten(2)[:, :, None]
        )
        signs = random_signs(bits.flatten(), x.shape[1], x).view(*bits.shape, -1, 1)
        is_second_only = (~_overlap_mask(bits, second_bits, side, x.shape)).to(x.dtype)
        return cls(first_pixels, second_pixels, is_second_only, bumps * signs)

    def apply_to(self, problem: Problem, best: Tensor, rows: ImageRows = ALL_IMAGES) -> Tensor:
        threat, count = problem.ball, self.first_pixels.shape[1]
        x = problem.x[rows] if isinstance(rows, slice) else problem.x.index_select(0, rows)
        delta = best - x
        move = self._mass_move(problem, delta)
        if threat.norm == "L1":
            points = _repeat_images(delta, count)
            points.scatter_(2, self.second_pixels, 0.0).scatter_(
                2, self.first_pixels, move.new_values.flatten(2)
            )
            copies = x.repeat_interleave(count, 0)
            scale = x.new_full((len(copies),), L1_MARGIN)
            projected = threat.project(copies, copies + points.view_as(copies), scale)
            return projected.view(-1, count, *x.shape[1:])
        scale, flat = move.scale[..., 0], x.flatten(1)[:, None]
        points = torch.addcmul(flat, delta.flatten(1)[:, None], scale).clamp_(0, 1)
        clean = _gather_pixels(x, torch.cat([self.second_pixels, self.first_pixels], 1)).flatten(2)
        points.scatter_(2, self.second_pixels, clean[:, :count])
        filled = torch.addcmul(clean[:, count:], move.new_values.flatten(2), scale).clamp_(0, 1)
        return points.scatter_(2, self.first_pixels, filled).view(-1, count, *x.shape[1:])

    def _mass_move(self, problem: Problem, delta: Tensor) -> MassMove:
        """What is taken away and put in its place."""
        is_l2 = problem.ball.norm == "L2"
        first_values = _gather_pixels(delta, self.first_pixels)
        second_values = _gather_pixels(delta, self.second_pixels) * self.is_second_only

        def mass(values: Tensor) -> Tensor:
            return (values.square() if is_l2 else values.abs()).sum(-1, keepdim=True)

        def length(values: Tensor) -> Tensor:
            return (mass(values).sqrt() if is_l2 else mass(values)) + TINY

        removed = mass(first_values) + mass(second_values)
        total = mass(delta.flatten(1)).view(-1, 1, 1, 1)
        new_values = (first_values / length(first_values)).add_(self.pattern)
        new_values.mul_(channel_budget(problem, total, removed) / length(new_values))
        # The length of the whole is known from its pieces, so that no image is read for it.
        square = total + (mass(new_values) - removed).sum(2, keepdim=True)
        scale = problem.ball.eps / (square.clamp_min(0).sqrt() + TINY)
        return MassMove(new_values, scale)


def _repeat_images(best: Tensor, count: int) -> Tensor:
    """(N, K, pixels) each image several times."""
    return best.flatten(1)[:, None].repeat(1, count, 1)


def _pixel_indices(bits: Tensor, side: int, shape: torch.Size) -> Tensor:
    """(N, K, C * side * side) the pixels of each window, as places in the image."""
    top, left = window_corner(bits, torch.tensor(side), shape)
    return (top * shape[-1] + left)[:, :, None] + window_pixels(side, *shape[1:])


def _gather_pixels(values: Tensor, pixels: Tensor) -> Tensor:
    """(N, K, C, pixels) the values (N, C, H, W) at the pixels of windows."""
    n, count = pixels.shape[:2]
    gathered = values.flatten(1).gather(1, pixels.view(n, -1))
    return gathered.view(n, count, values.shape[1], -1)


def _overlap_mask(bits: Tensor, second_bits: Tensor, side: int, shape: torch.Size) -> Tensor:
    """(N, K, 1, pixels) which pixels of the second window are in the first too."""
    offsets = torch.arange(side)
    first, second = (window_corner(b, torch.tensor(side), shape) for b in (bits, second_bits))
    in_rows, in_columns = (
        ((b - a)[:, :, None] + offsets >= 0) & ((b - a)[:, :, None] + offsets < side)
        for a, b in zip(first, second, strict=True)
    )
    return (in_rows[..., :, None] & in_columns[..., None, :]).flatten(2)[:, :, None]


@dataclass
class SquareState(AttackState):
    """Per run: the best point so far, its margin, and the key of its random numbers."""

    best_x: Tensor
    best_margin: Tensor  # (N,)
    key: Tensor  # (N,) int64
    query_bits: Tensor  # (N, AHEAD) int64: the random bits of a block of queries
    bits_block: Tensor  # (N,) int64: which block that is
    has_proposal: Tensor  # (N,) x_t is the point of the next query; else it is still to be drawn
    acceptance_rate: Tensor  # (N,) the share of the last queries tried that were better
