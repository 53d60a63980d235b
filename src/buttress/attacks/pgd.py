"""Projected gradient ascent (Madry et al., arXiv:1706.06083)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, State
from buttress.attacks.losses import LOSSES, Loss
from buttress.attacks.problem import Problem, Seen
from buttress.errors import UserError


@ATTACKS.register("pgd", paper="arXiv:1706.06083", tags=("white_box",))
@dataclass(frozen=True)
class PGD(Attack):
    r"""Projected gradient ascent from a random start.

    .. math:: x_{t+1} = \Pi\bigl(x_t + \alpha\, s(\nabla_{x_t} \ell(f(x_t), y))\bigr)

    where :math:`\Pi` projects exactly onto :math:`B_\epsilon(x) \cap [0,1]^d`, :math:`s` is
    `Threat.ascent` and :math:`\alpha` = ``rel_step * eps``.

    Departures from the paper: each sample's best iterate is returned, not its last; the L1 step
    moves the largest 1% of the gradient's coordinates, not all of them.
    """

    steps: int = 20
    rel_step: float = 0.25
    restarts: int = 1
    loss: Literal["ce", "margin"] = "ce"
    start: Literal["random", "clean"] = "random"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.restarts < 1 or not self.rel_step > 0:
            raise UserError(
                "`steps >= 1`, `restarts >= 1` and `rel_step > 0` must hold, but got "
                f"steps={self.steps}, restarts={self.restarts}, rel_step={self.rel_step}"
            )

    @property
    def length(self) -> int:
        return self.steps

    @property
    def runs(self) -> int:
        return self.restarts

    @property
    def objective(self) -> Loss:
        return LOSSES[self.loss]

    def begin(self, problem: Problem, run: int) -> State:
        is_clean = self.start == "clean" and run == 0
        return State(problem.x.clone() if is_clean else problem.random_start(run))

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        assert seen.grad is not None
        direction = problem.threat.ascent(state.x_t, seen.grad)
        return problem.project(state.x_t + self.rel_step * problem.threat.eps * direction)
