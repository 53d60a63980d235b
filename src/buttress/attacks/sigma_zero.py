"""Sigma-zero (Cina et al., arXiv:2402.01879): the fewest pixels that fool the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, AttackState, broadcast_to_images, check_positive
from buttress.attacks.losses import margin
from buttress.attacks.problem import ModelOutput, Problem
from buttress.attacks.sparse_pgd import sparse_threat
from buttress.threats.core import Space

SIGMA = 1e-3  # how sharp the smooth count of changes is
FIRST_THRESHOLD = 0.3  # changes below it are undone
THRESHOLD_STEP = 0.01  # of the threshold, times the step size
DECAY_MEAN, DECAY_SQUARE = 0.9, 0.999  # of Adam


@dataclass
class SigmaZeroState(AttackState):
    """Per run: the moments of Adam, and the threshold below which changes are undone."""

    mean: Tensor
    square: Tensor
    threshold: Tensor  # (N,)


@ATTACKS.register("sigma_zero", paper="arXiv:2402.01879", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class SigmaZero(Attack):
    r"""Adam on the margin plus a smooth count of changes; a point counts if it is in the set.

    .. math:: \max(0, z_y - \max_{k \ne y} z_k) + \frac{1}{d} \sum_i
              \frac{\delta_i^2}{\delta_i^2 + \sigma}

    The gradient is divided by its largest value, the step size falls as a cosine from 1 to 0.1, and
    changes below a threshold are undone; it rises while the model is fooled and falls while it is
    not. For pixels :math:`\delta_i^2` is the sum over channels and the threshold is compared with
    the largest change of a channel. Departure from the paper: restarts after the first begin at a
    random member in place of the image.
    """

    spaces: ClassVar[tuple[Space, ...]] = ("L0",)
    steps: int = 300
    restarts: int = 1

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, restarts=self.restarts)

    @property
    def max_steps(self) -> int:
        return self.steps

    def num_runs(self, num_classes: int) -> int:
        return self.restarts

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        return margin(logits, problem.y).clamp_max(0)

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        x_t = problem.x.where(broadcast_to_images(run_index == 0), problem.random_start(run_index))
        zero = torch.zeros_like(x_t)
        threshold = x_t.new_full((len(x_t),), FIRST_THRESHOLD)
        return SigmaZeroState(x_t, mean=zero, square=zero.clone(), threshold=threshold)

    def valid_mask(self, problem: Problem, state: AttackState, fooled: Tensor) -> Tensor | None:
        return problem.threat.excess(problem.x, state.x_t) == 0

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert isinstance(state, SigmaZeroState)
        assert output.grad is not None
        threat, x, delta = sparse_threat(problem), problem.x, state.x_t - problem.x
        size = threat.sum_units(delta.square())
        count_grad = 2 * SIGMA * delta / (size + SIGMA).square() / size[0].numel()
        grad = count_grad - output.grad
        grad = grad / broadcast_to_images(grad.flatten(1).abs().amax(1).clamp_min(1e-12))
        step = (state.step + 1).to(x.dtype)
        state.mean = torch.lerp(state.mean, grad, 1 - DECAY_MEAN)
        state.square = torch.lerp(state.square, grad.square(), 1 - DECAY_SQUARE)
        mean = state.mean / broadcast_to_images(1 - DECAY_MEAN**step)
        square = state.square / broadcast_to_images(1 - DECAY_SQUARE**step)
        move = mean / (square.sqrt() + 1e-8)
        x_next = (state.x_t - broadcast_to_images(self._step_size(step - 2)) * move).clamp(0, 1)
        is_fooled = output.logits.argmax(1) != problem.y
        change = THRESHOLD_STEP * self._step_size(step - 1)
        state.threshold = (state.threshold + change.where(is_fooled, -change)).clamp(0, 1)
        largest = (x_next - x).abs()
        largest = largest if threat.by_value else largest.amax(1, keepdim=True)
        return x_next.where(largest >= broadcast_to_images(state.threshold), x)

    def _step_size(self, step: Tensor) -> Tensor:
        """(N,) 1 at first, then a cosine down to 0.1."""
        cosine = (1 + torch.cos(math.pi * step.clamp_min(0) / self.steps)) / 2
        return 0.1 + 0.9 * cosine
