"""Where runs of the Square attack stand."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from buttress.attacks.core import State


@dataclass
class SquareState(State):
    """Per run: the best point so far, its margin, and the key of its random numbers."""

    best_x: Tensor
    best: Tensor  # (N,)
    key: Tensor  # (N,) int64
    drawn: Tensor  # (N, AHEAD) int64: the random bits of a block of queries
    block: Tensor  # (N,) int64: which block that is
    has_point: Tensor  # (N,) x_t is the point to look at; else it is made when many are looked at
    kept: Tensor  # (N,) the share of the last queries tried that were better
    # for forecasts, see `square_forecast`
    slope: Tensor  # (N, C, H, W) the gradient of the margin at the best point when a block began
    slope_block: Tensor  # (N,) int64: which block of queries that was, -1 if none
    error: Tensor  # (N,) the mean square of forecast errors before that block, inf if not known
    squares: Tensor  # (N,) their sum since then
    counted: Tensor  # (N,) and how many there were
