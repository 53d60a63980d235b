"""Guided adversarial margin attacks (Sriramanan et al., arXiv:2011.14969)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from buttress.attacks.core import (
    ATTACKS,
    Attack,
    AttackState,
    KeptPoint,
    broadcast_to_images,
    check_positive,
)
from buttress.attacks.losses import probability_margin
from buttress.attacks.problem import ModelOutput, Problem
from buttress.threats.core import Space


@dataclass
class GAMAState(AttackState):
    """The current points, and the probabilities at the start, once they were seen."""

    start_probabilities: Tensor = field(default_factory=lambda: torch.empty(0))  # (N, K)


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

    spaces: ClassVar[tuple[Space, ...]] = ("Linf",)
    steps: int = 100
    restarts: int = 1
    weight: float = 50.0
    keep: KeptPoint = "best"

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, restarts=self.restarts)

    @property
    def max_steps(self) -> int:
        return self.steps

    def num_runs(self, num_classes: int) -> int:
        return self.restarts

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        corner = (2 * problem.rng.draw_uniform(problem.x, run_index) - 1).sign()
        x_t = problem.project(problem.x + problem.ball.eps * corner)
        guide = x_t.new_zeros(len(x_t), problem.num_classes)
        return GAMAState(x_t, start_probabilities=guide)

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        assert isinstance(state, GAMAState)
        p = logits.softmax(1)
        state.start_probabilities = p.detach().where(
            (state.step == 0)[:, None], state.start_probabilities
        )
        decay = (1 - state.step / max(0.25 * self.steps, 1)).clamp_min(0).to(p.dtype)
        squared_distance = (state.start_probabilities - p).square().sum(1)
        return probability_margin(logits, problem.y) + self.weight * decay * squared_distance

    def _num_step_drops(self, state: AttackState) -> Tensor:
        """(N, 1, 1, 1) how often the step was cut so far."""
        drops = [state.step >= fraction * self.steps for fraction in (0.6, 0.85)]
        return broadcast_to_images(drops[0].to(state.x_t.dtype) + drops[1])

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert output.grad is not None
        step_size = 2 * problem.ball.eps * 0.1 ** self._num_step_drops(state)
        return problem.project(state.x_t + step_size * output.grad.sign())

    def valid_mask(self, problem: Problem, state: AttackState, fooled: Tensor) -> Tensor | None:
        return state.step >= self.max_steps if self.keep == "last" else None


@ATTACKS.register("gama_fw", paper="arXiv:2011.14969", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class GAMAFW(GAMA):
    r"""The Frank-Wolfe form: :math:`\delta \leftarrow (1-\gamma)\delta + \gamma\epsilon\,s(g)`.

    :math:`\gamma` = 0.5, divided by 5 at 60% and at 85% of the steps.
    """

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert output.grad is not None
        gamma = 0.5 * 0.2 ** self._num_step_drops(state)
        corner = problem.x + problem.ball.eps * output.grad.sign()
        return problem.project(torch.lerp(state.x_t, corner, gamma))
