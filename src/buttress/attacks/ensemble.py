"""Several attacks as one: each sees only what the ones before it left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from torch import Tensor

from buttress.attacks.core import Attack, State
from buttress.attacks.problem import Problem, Seen


@dataclass(frozen=True)
class Ensemble(Attack):
    """An attack that is nothing but its `parts`; the loop runs them, so it has no steps itself."""

    @property
    def length(self) -> int:
        return 0

    def begin(self, problem: Problem, run: Tensor) -> State:
        self._refuse()

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} has no steps of its own: run its parts")
