"""Guided adversarial margin attacks (Sriramanan et al., arXiv:2011.14969)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, Keep, State, at_least_one, column
from buttress.attacks.losses import probability_margin
from buttress.attacks.problem import Problem, Seen
from buttress.threat import Norm


@dataclass
class GuidedState(State):
    """The current points, and the probabilities at the start, once they were seen."""

    guide: Tensor = field(default_factory=lambda: torch.empty(0))  # (N, K)


@ATTACKS.register("gama", paper="arXiv:2011.14969", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class GAMA(Attack):
    r"""Probability margin plus a relaxation that fades: GAMA-PGD.

    .. math:: \max_{k \ne y} p_k - p_y + \lambda_t \lVert p(x_0) - p(x_t) \rVert_2^2

    :math:`\lambda` falls from ``weight`` to 0 over the first quarter of the steps. Sign steps of
    2 eps, divided by 10 at 60% and at 85% of the steps, from a random corner of the ball. The guide
    p(x_0) is taken at the noisy start, as in both public codes (the paper's text has the clean
    image).

    Departures from the code published with RobustWRN: the last point is projected too, and the best
    point counts unless ``keep="last"``.
    """

    norms: ClassVar[tuple[Norm, ...]] = ("Linf",)
    steps: int = 100
    restarts: int = 1
    weight: float = 50.0
    keep: Keep = "best"

    def __post_init__(self) -> None:
        at_least_one(steps=self.steps, restarts=self.restarts)

    @property
    def length(self) -> int:
        return self.steps

    def runs(self, problem: Problem) -> int:
        return self.restarts

    def begin(self, problem: Problem, run: Tensor) -> State:
        corner = (2 * problem.streams.uniform(problem.x, run) - 1).sign()
        x_t = problem.project(problem.x + problem.threat.eps * corner)
        guide = x_t.new_zeros(len(x_t), problem.num_classes)
        return GuidedState(x_t, guide=guide)

    def goal(self, problem: Problem, state: State, logits: Tensor) -> Tensor:
        assert isinstance(state, GuidedState)
        p = logits.softmax(1)
        state.guide = p.detach().where((state.step == 0)[:, None], state.guide)
        fade = (1 - state.step / max(0.25 * self.steps, 1)).clamp_min(0).to(p.dtype)
        far = (state.guide - p).square().sum(1)
        return probability_margin(logits, problem.y) + self.weight * fade * far

    def _drops(self, state: State) -> Tensor:
        """(N, 1, 1, 1) how often the step was cut so far."""
        cuts = [state.step >= share * self.steps for share in (0.6, 0.85)]
        return column(cuts[0].to(state.x_t.dtype) + cuts[1])

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        assert seen.grad is not None
        length = 2 * problem.threat.eps * 0.1 ** self._drops(state)
        return problem.project(state.x_t + length * seen.grad.sign())

    def inside(self, problem: Problem, state: State, broken: Tensor) -> Tensor | None:
        return state.step >= self.length if self.keep == "last" else None


@ATTACKS.register("gama_fw", paper="arXiv:2011.14969", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class GAMAFW(GAMA):
    r"""The Frank-Wolfe form: :math:`\delta \leftarrow (1-\gamma)\delta + \gamma\epsilon\,s(g)`.

    :math:`\gamma` = 0.5, divided by 5 at 60% and at 85% of the steps.
    """

    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        assert seen.grad is not None
        share = 0.5 * 0.2 ** self._drops(state)
        corner = problem.x + problem.threat.eps * seen.grad.sign()
        return problem.project(torch.lerp(state.x_t, corner, share))
