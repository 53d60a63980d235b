"""Sparse projected gradient ascent (Zhong et al., arXiv:2405.05075)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from buttress.attacks.core import (
    ATTACKS,
    Attack,
    AttackState,
    broadcast_to_images,
    check_positive,
)
from buttress.attacks.losses import cross_entropy, margin, targeted_margin
from buttress.attacks.problem import ModelOutput, Problem
from buttress.attacks.targets import check_target_count, choose_target
from buttress.threats.core import Space
from buttress.threats.sparse import SparseChange

STEP = 0.25  # of values
MASK_STEP = 0.25  # of mask scores, times the root of their number
PATIENCE = 3  # steps with the same pixels after which their scores are drawn again
SMALL_MARGIN = 0.5  # below which the margin replaces the cross-entropy
UNTARGETED_RUNS = 2  # one of each form of the gradient, before runs have a target


@dataclass
class SparseState(AttackState):
    """Per run: values for all pixels, the score of each pixel, and which are changed."""

    values: Tensor  # (N, C, H, W) in [0, 1]
    scores: Tensor  # (N, 1 or C, H, W)
    is_chosen: Tensor  # the same, bool
    num_same: Tensor  # (N,) steps with the same pixels
    is_projected: Tensor  # (N,) bool: gradients of chosen pixels only
    run_index: Tensor
    target: Tensor  # (N,) the class of runs that have one


@ATTACKS.register("sparse_pgd", paper="arXiv:2405.05075", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class SparsePGD(Attack):
    r"""The change as a product of values p and a mask of k pixels: :math:`\delta = p \odot m`.

    Sign steps of 1/4 on the values; on the scores :math:`\tilde m`, whose k largest are the mask,
    steps along the gradient of :math:`p \odot \sigma(\tilde m)`. Where the pixels stay the same for
    three steps their scores are drawn again. The first run takes the values' gradient at all
    pixels (sPGD-u), the second at the chosen ones (sPGD-p), and so on. The loss is the
    cross-entropy, the margin where that is above -0.5.

    Departure from the paper: from the third run on the loss is the margin :math:`z_t - z_y` of a
    class t, the ``targets`` most likely other classes in turn; 0 leaves all runs untargeted. Short
    runs with targets fool more images than long ones without.
    """

    spaces: ClassVar[tuple[Space, ...]] = ("L0",)
    steps: int = 60
    restarts: int = 5
    targets: int = 3

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, restarts=self.restarts)
        check_target_count(self.targets)

    @property
    def max_steps(self) -> int:
        return self.steps

    def num_runs(self, num_classes: int) -> int:
        return self.restarts

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        assert isinstance(state, SparseState)
        margins = margin(logits, problem.y)
        loss = torch.where(margins > -SMALL_MARGIN, margins, cross_entropy(logits, problem.y))
        if not self.targets:
            return loss
        is_targeted = state.run_index >= UNTARGETED_RUNS
        return targeted_margin(logits, problem.y, state.target).where(is_targeted, loss)

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        threat = sparse_threat(problem)
        target_rank = (run_index - UNTARGETED_RUNS) % max(1, self.targets)
        values = problem.rng.draw_uniform(problem.x, run_index * (self.steps + 1))
        scores = self._draw_scores(problem, run_index * (self.steps + 1))
        is_chosen = threat.largest_units(scores)
        return SparseState(
            values.where(is_chosen, problem.x),
            values=values,
            scores=scores,
            is_chosen=is_chosen,
            num_same=torch.zeros_like(run_index),
            is_projected=run_index % 2 == 1,
            run_index=run_index.clone(),
            target=choose_target(problem, "each", target_rank),
        )

    def _draw_scores(self, problem: Problem, draw: Tensor) -> Tensor:
        return problem.rng.draw_normal(sparse_threat(problem).sum_units(problem.x), draw)

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert isinstance(state, SparseState)
        assert output.grad is not None
        threat, grad = sparse_threat(problem), output.grad
        weight = state.scores.sigmoid()
        score_grad = threat.sum_units(grad * (state.values - problem.x)) * weight * (1 - weight)
        # First by the largest: squares of the tiny gradients of confident models would be zero.
        largest = score_grad.abs().flatten(1).amax(1).clamp_min(1e-30)
        score_grad = score_grad / broadcast_to_images(largest)
        length = broadcast_to_images(score_grad.flatten(1).norm(dim=1).clamp_min(1e-30))
        step_size = MASK_STEP * score_grad[0].numel() ** 0.5
        state.scores = state.scores + step_size * score_grad / length
        is_moved = state.is_chosen | ~broadcast_to_images(state.is_projected)
        state.values = (state.values + STEP * grad.sign() * is_moved).clamp(0, 1)
        is_chosen = threat.largest_units(state.scores)
        is_same = (is_chosen == state.is_chosen).flatten(1).all(1)
        state.num_same = (state.num_same + 1) * is_same
        is_stalled = state.num_same >= PATIENCE
        if bool(is_stalled.any()):
            draw = state.run_index * (self.steps + 1) + state.step + 1
            drawn = self._draw_scores(problem, draw)
            state.scores = drawn.where(broadcast_to_images(is_stalled), state.scores)
            is_chosen = threat.largest_units(state.scores)
            state.num_same = state.num_same * ~is_stalled
        state.is_chosen = is_chosen
        return state.values.where(is_chosen, problem.x)


def sparse_threat(problem: Problem) -> SparseChange:
    assert isinstance(problem.threat, SparseChange)
    return problem.threat
