"""Random points: the floor that every attack must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, State, at_least_one
from buttress.attacks.problem import Problem, Seen


@ATTACKS.register("noise", tags=("black_box",))
@dataclass(frozen=True)
class Noise(Attack):
    """The worst of ``points`` points drawn uniformly from the ball."""

    needs_grad: ClassVar[bool] = False
    points: int = 10

    def __post_init__(self) -> None:
        at_least_one(points=self.points)

    @property
    def length(self) -> int:
        return 0

    def runs(self, problem: Problem) -> int:
        return self.points

    def begin(self, problem: Problem, run: Tensor) -> State:
        return State(problem.random_start(run))

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        return state.x_t
