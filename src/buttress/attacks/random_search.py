"""Random search in any threat model: a change is kept if the margin grew, no gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, AttackState, check_positive, copy_rows_
from buttress.attacks.losses import margin_if_finite
from buttress.attacks.problem import ModelOutput, Problem
from buttress.errors import UserError
from buttress.threats.core import SPACES, Space

MIN_FRACTION = 0.01  # of what may change that a query replaces
MAX_QUERIES = 1 << 20  # of a run: the numbers of its draws do not meet those of other runs


@dataclass
class SearchState(AttackState):
    """Per run: its number, the best point so far and its margin."""

    run_index: Tensor
    best_x: Tensor
    best_margin: Tensor

    def keep_better(self, output: ModelOutput) -> None:
        """Takes the current points as the best ones where their margin is larger."""
        is_better = output.loss > self.best_margin
        copy_rows_(self.best_x, is_better, self.x_t)
        self.best_margin = output.loss.where(is_better, self.best_margin)

    def draws(self) -> Tensor:
        """(N,) the number of the next draw."""
        return self.run_index * MAX_QUERIES + self.step + 1


def start_search(x_t: Tensor, run_index: Tensor) -> SearchState:
    return SearchState(x_t, run_index.clone(), x_t.clone(), x_t.new_full((len(x_t),), -torch.inf))


@dataclass(frozen=True)
class GradientFreeSearch(Attack):
    """Attacks that maximize the margin from its values alone."""

    needs_grad: ClassVar[bool] = False
    has_forward_only_passes: ClassVar[bool] = True

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        return margin_if_finite(logits, problem.y)


@ATTACKS.register("random_search", paper="arXiv:2006.12834", tags=("black_box", "iterative"))
@dataclass(frozen=True)
class RandomSearch(GradientFreeSearch):
    r"""Random neighbors of the best member so far; the first is a random member.

    A query replaces a fraction ``p_init`` :math:`(1 - t/T)^2` of what may change: pixels of a
    sparse change, the place or a part of a patch, a window of a norm ball or of the parameters of
    a parametric threat, as `SearchSet.random_neighbor` says. In L0 and for patches that is
    Sparse-RS with another schedule; in norm balls `square` is the better choice.
    """

    spaces: ClassVar[tuple[Space, ...]] = SPACES
    queries: int = 1000
    restarts: int = 1
    p_init: float = 0.5

    def __post_init__(self) -> None:
        check_positive(queries=self.queries, restarts=self.restarts)
        if not 0 < self.p_init <= 1 or self.queries >= MAX_QUERIES:
            raise UserError(
                f"`0 < p_init <= 1` and `queries < {MAX_QUERIES}` must hold, but got "
                f"p_init={self.p_init} and queries={self.queries}"
            )

    @property
    def max_steps(self) -> int:
        return self.queries

    def num_runs(self, num_classes: int) -> int:
        return self.restarts

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        return start_search(problem.random_start(run_index * MAX_QUERIES), run_index)

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert isinstance(state, SearchState)
        state.keep_better(output)
        left = 1 - state.step.to(problem.x.dtype) / self.queries
        fraction = (self.p_init * left.square()).clamp_min(MIN_FRACTION)
        return problem.threat.random_neighbor(
            problem.x, state.best_x, fraction, problem.rng, state.draws()
        )
