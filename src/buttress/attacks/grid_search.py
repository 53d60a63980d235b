"""The worst rotation and translation of a grid (Engstrom et al., arXiv:1712.02779)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from buttress.attacks.core import ATTACKS, AttackState, broadcast_to_images, check_positive
from buttress.attacks.problem import ModelOutput, Problem
from buttress.attacks.random_search import GradientFreeSearch, SearchState, start_search
from buttress.errors import UserError
from buttress.threats.spatial import Spatial


@ATTACKS.register("grid", paper="arXiv:1712.02779", tags=("black_box", "iterative"))
@dataclass(frozen=True)
class GridSearch(GradientFreeSearch):
    """Every point of a grid over angles and moves, then random steps around the worst one.

    All ``angles * shifts * shifts`` points are tried, so that no point of the grid is worse; the
    ``refine`` queries after them go at most one cell far, less and less. Only for `spatial`.
    """

    kinds: ClassVar[tuple[str, ...]] = ("spatial",)
    angles: int = 31
    shifts: int = 5
    refine: int = 50

    def __post_init__(self) -> None:
        check_positive(angles=self.angles, shifts=self.shifts)
        if self.refine < 0:
            raise UserError(f"`refine >= 0` must hold, but got refine={self.refine}")

    @property
    def max_steps(self) -> int:
        return self.angles * self.shifts**2 - 1 + self.refine

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        first = self._grid(problem)[:1].expand_as(problem.x)
        return start_search(first.clone(), run_index)

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert isinstance(state, SearchState)
        state.keep_better(output)
        grid, next_step = self._grid(problem), state.step + 1
        on_grid = grid[next_step.clamp_max(len(grid) - 1)]
        num_refined = (next_step - len(grid)).clamp_min(0)
        if not bool((next_step >= len(grid)).any()):
            return on_grid
        cell = problem.x.new_tensor([1 / max(1, n - 1) for n in (self.angles, *[self.shifts] * 2)])
        left = 1 - num_refined.to(cell.dtype) / max(1, self.refine)
        move = 2 * problem.rng.draw_uniform(problem.x, state.draws()) - 1
        near = state.best_x + move * cell.view(1, 3, 1, 1) * broadcast_to_images(left)
        is_over = broadcast_to_images(next_step >= len(grid))
        return problem.project(near).where(is_over, on_grid)

    def _grid(self, problem: Problem) -> Tensor:
        """The grid in an order in which neighbors are far apart: weak models fall early."""
        assert isinstance(problem.parametric, Spatial)
        grid = problem.parametric.grid(self.angles, self.shifts)
        return grid[_shuffled(len(grid))].to(problem.x)


@lru_cache
def _shuffled(count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))
