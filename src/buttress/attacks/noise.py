"""Random points: the floor that every attack must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, AttackState, check_positive
from buttress.attacks.problem import ModelOutput, Problem
from buttress.threats.core import SPACES, Space


@ATTACKS.register("noise", tags=("black_box",))
@dataclass(frozen=True)
class UniformNoise(Attack):
    """The worst of ``samples`` points drawn uniformly from the set."""

    needs_grad: ClassVar[bool] = False
    spaces: ClassVar[tuple[Space, ...]] = SPACES
    samples: int = 10

    def __post_init__(self) -> None:
        check_positive(samples=self.samples)

    @property
    def max_steps(self) -> int:
        return 0

    def num_runs(self, num_classes: int) -> int:
        return self.samples

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        return AttackState(problem.random_start(run_index))

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        return state.x_t
