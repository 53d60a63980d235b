"""Forecasts for the Square attack: queries that a gradient says will not be kept.

A query is kept if the margin grows. It moves a point by little, where the margin is nearly linear,
so that one gradient tells of a hundred queries by how much each will change it, and most are so
clearly worse that no pass is needed to know. Those that move nothing, as most in L1, need none.
By how much forecasts err is measured for each image on the queries that are tried, among them one
in 32 whatever its forecast. A query is left out only where its forecast is below zero by twice that
error. Where gradients mislead, errors are as large as forecasts and nearly every query is tried;
where they are zero, every one that moves the point.

Blocks of queries have one gradient and one error, those of their beginning, so that what is decided
depends on the image and its earlier queries alone, not on what shares a batch with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from buttress.attacks.losses import margin
from buttress.attacks.problem import Problem
from buttress.attacks.square_patches import Effect
from buttress.attacks.square_state import SquareState
from buttress.streams import shift

BLOCK = 100  # queries of one gradient; windows change their size only where a block begins
TRUST = 2.0  # a query is left out where its forecast is below zero by so many errors
PRIOR = 32  # queries that what was known before counts as
LEAST = 16  # queries that an error is first known from
WIDE = 64  # queries of an image that are looked at in one go, at most
SAMPLE = 32  # of so many queries one is tried whatever its forecast


def block_of(query: Tensor) -> Tensor:
    return (query - 1) // BLOCK


def begin_block(problem: Problem, state: SquareState, rows: Tensor) -> None:
    """New gradients and errors for those of the rows that begin a block."""
    block = block_of(state.step[rows] - 1)
    if not len(new := rows[state.slope_block[rows] != block]):
        return
    here = problem.select(new)
    seen = here.look(state.best_x[new], lambda logits: margin(logits, here.y))
    assert seen.grad is not None
    state.slope[new] = seen.grad
    state.slope_block[new] = block_of(state.step[new] - 1)
    error, squares, counted = (t[new] for t in (state.error, state.squares, state.counted))
    before = torch.where(error.isfinite(), PRIOR, 0).to(counted)
    is_enough = before + counted >= LEAST
    known = (torch.nan_to_num(error, posinf=0.0) * before + squares) / (before + counted)
    state.error[new] = known.where(is_enough, error)
    state.squares[new] = squares.masked_fill(is_enough, 0)
    state.counted[new] = counted.masked_fill(is_enough, 0)


@dataclass
class Hopes:
    """Which queries of some images may be kept."""

    limit: Tensor  # (R, 1) a forecast below this, for each unit of size, leaves a query out
    is_sampled: Tensor  # (R, K) queries that are tried in any case
    squares: Tensor  # (R,) of the errors found
    counted: Tensor  # (R,) how many there were
    share: float = 0.5  # of the last queries that were not left out

    @classmethod
    def of(cls, state: SquareState, rows: Tensor, bits: Tensor) -> Hopes:
        limit = -TRUST * state.error[rows].sqrt()
        zero = torch.zeros_like(limit)
        return cls(limit[:, None], shift(bits, 59) % SAMPLE == 0, zero, zero.clone())

    def width(self, count: int) -> int:
        """How many queries must be looked at to find so many that may be kept, about."""
        return min(WIDE, math.ceil(1.5 * count / max(self.share, 1 / WIDE)))

    def of_queries(self, effect: Effect, rows: Tensor, query: Tensor) -> Tensor:
        """(N, Q) queries that may be kept, and a sample of the others; none that moves nothing."""
        hopeful = ~(effect.change < self.limit[rows] * effect.size)  # also where it is no number
        hopeful |= self.is_sampled[rows[:, None], query]
        hopeful &= effect.size > 0
        self.share += 0.1 * (float(hopeful.float().mean()) - self.share)
        return hopeful

    def learn(self, rows: Tensor, errors: Tensor) -> None:
        """Takes in by how much forecasts were off, for each unit of size; rows may repeat."""
        self.squares.index_add_(0, rows, errors.square().nan_to_num_(nan=torch.inf))
        self.counted.index_add_(0, rows, torch.ones_like(errors))

    def end(self, state: SquareState, rows: Tensor) -> None:
        state.squares[rows] += self.squares
        state.counted[rows] += self.counted
