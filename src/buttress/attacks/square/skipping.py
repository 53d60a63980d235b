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
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from buttress.attacks.losses import margin
from buttress.attacks.problem import Problem
from buttress.system.rng import logical_shift_right

if TYPE_CHECKING:
    from buttress.attacks.square.proposals import LinearEffect, SquareState

QUERIES_PER_GRADIENT = (
    100  # queries of one gradient; windows change their size only where a block begins
)
ERROR_FACTOR = 2.0  # a query is left out where its forecast is below zero by so many errors
PRIOR_COUNT = 32  # queries that what was known before counts as
MIN_ERRORS = 16  # queries that an error is first known from
MAX_WIDTH = 64  # queries of an image that are looked at in one go, at most
SAMPLING_INTERVAL = 32  # of so many queries one is tried whatever its forecast


def gradient_block(query: Tensor) -> Tensor:
    return (query - 1) // QUERIES_PER_GRADIENT


def update_gradients(problem: Problem, state: SquareState, rows: Tensor) -> None:
    """New gradients and errors for those of the rows that begin a block."""
    block = gradient_block(state.step[rows] - 1)
    if not len(new_rows := rows[state.grad_block[rows] != block]):
        return
    row_problem = problem.select(new_rows)
    output = row_problem.evaluate_at(
        state.best_x[new_rows], lambda logits: margin(logits, row_problem.y)
    )
    assert output.grad is not None
    state.margin_grad[new_rows] = output.grad
    state.grad_block[new_rows] = gradient_block(state.step[new_rows] - 1)
    error, squares, counted = (
        t[new_rows] for t in (state.mean_squared_error, state.squared_error_sum, state.error_count)
    )
    prior_weight = torch.where(error.isfinite(), PRIOR_COUNT, 0).to(counted)
    is_enough = prior_weight + counted >= MIN_ERRORS
    updated_error = (torch.nan_to_num(error, posinf=0.0) * prior_weight + squares) / (
        prior_weight + counted
    )
    state.mean_squared_error[new_rows] = updated_error.where(is_enough, error)
    state.squared_error_sum[new_rows] = squares.masked_fill(is_enough, 0)
    state.error_count[new_rows] = counted.masked_fill(is_enough, 0)


@dataclass
class QueryFilter:
    """Which queries of some images may be kept."""

    threshold: Tensor  # (R, 1) a forecast below this, for each unit of size, leaves a query out
    is_sampled: Tensor  # (R, K) queries that are tried in any case
    squared_error_sum: Tensor  # (R,) of the errors found
    error_count: Tensor  # (R,) how many there were
    pass_rate: float = 0.5  # of the last queries that were not left out

    @classmethod
    def from_state(cls, state: SquareState, rows: Tensor, bits: Tensor) -> QueryFilter:
        limit = -ERROR_FACTOR * state.mean_squared_error[rows].sqrt()
        zero = torch.zeros_like(limit)
        return cls(
            limit[:, None],
            logical_shift_right(bits, 59) % SAMPLING_INTERVAL == 0,
            zero,
            zero.clone(),
        )

    def width(self, count: int) -> int:
        """How many queries must be looked at to find so many that may be kept, about."""
        return min(MAX_WIDTH, math.ceil(1.5 * count / max(self.pass_rate, 1 / MAX_WIDTH)))

    def promising_queries(self, effect: LinearEffect, rows: Tensor, query: Tensor) -> Tensor:
        """(N, Q) queries that may be kept, and a sample of the others; none that moves nothing."""
        promising = ~(
            effect.margin_change < self.threshold[rows] * effect.move_size
        )  # also where it is no number
        promising |= self.is_sampled[rows[:, None], query]
        promising &= effect.move_size > 0
        self.pass_rate += 0.1 * (float(promising.float().mean()) - self.pass_rate)
        return promising

    def add_errors(self, rows: Tensor, errors: Tensor) -> None:
        """Takes in by how much forecasts were off, for each unit of size; rows may repeat."""
        self.squared_error_sum.index_add_(0, rows, errors.square().nan_to_num_(nan=torch.inf))
        self.error_count.index_add_(0, rows, torch.ones_like(errors))

    def write_back(self, state: SquareState, rows: Tensor) -> None:
        state.squared_error_sum[rows] += self.squared_error_sum
        state.error_count[rows] += self.error_count


MAX_SHRINK_ITERATIONS = 8  # of Newton's method; it is exact once no coordinate changes sides


class Coordinates(NamedTuple):
    """Coordinates of a displacement, and the gradient there; (N, K, M) each."""

    delta: Tensor
    grad: Tensor


@dataclass
class L1Shrinkage:
    """A displacement (N, D) under amounts (N, K); sums over its D coordinates, smallest first."""

    size: Tensor  # (N, D)
    sums: Tensor  # (4, N, D + 1) of sizes, their squares, slopes upwards, and gains

    @classmethod
    def from_displacement(cls, delta: Tensor, grad: Tensor) -> L1Shrinkage:
        size, order = delta.abs().sort(dim=1)
        outward_grad = (delta.sign() * grad).gather(1, order)
        terms = torch.stack([size, size.square(), outward_grad, size * outward_grad])
        sums = torch.nn.functional.pad(terms.cumsum(2, dtype=torch.float64), (1, 0))
        return cls(size, sums)

    def shrink_amount(self, old_values: Tensor, new_values: Tensor, radius: float) -> Tensor:
        """(N, K) by how much all must shrink where ``new_values`` replace ``old_values``."""
        old_sizes, new_sizes = old_values.abs().double(), new_values.abs().double()
        amount = old_sizes.new_zeros(old_sizes.shape[:2])
        for _ in range(MAX_SHRINK_ITERATIONS):
            length, count = self._excess_above(amount)
            for values, sign in ((old_sizes, -1), (new_sizes, 1)):
                excess = (values - amount[..., None]).clamp_min_(0)
                length += sign * excess.sum(2)
                count += sign * (excess > 0).sum(2)
            increase = (length - radius).clamp_min(0) / count.clamp_min(1)
            amount = amount + increase
            if not bool((increase > 1e-9 * radius).any()):
                break
        return amount

    def _excess_above(self, amount: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of what is above an amount, and the number of such coordinates."""
        below = self._count_below(amount)
        count = self.size.shape[1] - below
        return self._sum_above(0, below) - amount * count, count

    def gain_and_square(self, amount: Tensor) -> tuple[Tensor, Tensor]:
        """(N, K) what shrinking by an amount gains along the slope, and its squared length."""
        below = self._count_below(amount)
        count = self.size.shape[1] - below
        gain = -amount * self._sum_above(2, below) - self.sums[3].gather(1, below)
        return gain, self.sums[1].gather(1, below) + amount.square() * count

    def _count_below(self, amount: Tensor) -> Tensor:
        """(N, K) coordinates that are not above an amount."""
        return torch.searchsorted(self.size, amount.to(self.size.dtype), right=True)

    def _sum_above(self, table_index: int, below: Tensor) -> Tensor:
        table = self.sums[table_index]
        return table[:, -1:] - table.gather(1, below)


def coordinate_gain_and_square(values: Coordinates, amount: Tensor) -> tuple[Tensor, Tensor]:
    """The same for single coordinates, summed: (N, K)."""
    move = values.delta.sign() * values.delta.abs().minimum(amount[..., None].to(values.delta))
    return -(move * values.grad).sum(2), move.square().sum(2)
