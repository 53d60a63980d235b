"""Gradient ascent on the content of a patch, at places chosen by the gradient and at random."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, AttackState, broadcast_to_images, check_positive
from buttress.attacks.losses import cross_entropy, margin
from buttress.attacks.problem import ModelOutput, Problem
from buttress.errors import UserError
from buttress.threats.core import Space
from buttress.threats.patch import Patch

FIRST_STEP = 0.5  # of the range of values


@dataclass
class PatchState(AttackState):
    """Per run: its number, the place of the patch, and the momentum of the gradient."""

    run_index: Tensor
    place: Tensor  # (N,) a row of `Patch.corners`
    momentum: Tensor


@ATTACKS.register("patch_pgd", paper="arXiv:1712.09665", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class PatchPGD(Attack):
    r"""Sign steps inside a square, one place per run.

    The first gradient, at the image, says by how much each pixel can raise the loss: with
    :math:`g_i \max(0, 1 - x_i)` or :math:`-g_i x_i` of every value, the square with the largest
    sum is the place of run 0, the next one that overlaps no earlier one by more than half that of
    run 2, and so on; odd runs take random places. There the values begin at the best of the linear
    model and move by sign steps with momentum whose length falls as a cosine from 1/2 to 0. The
    search for places is our own.
    """

    spaces: ClassVar[tuple[Space, ...]] = ("patch",)
    steps: int = 40
    restarts: int = 8
    loss: Literal["margin", "ce"] = "margin"
    momentum: float = 0.8

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, restarts=self.restarts)
        if not 0 <= self.momentum < 1:
            raise UserError(f"`0 <= momentum < 1` must hold, but got momentum={self.momentum}")

    @property
    def max_steps(self) -> int:
        return self.steps

    def num_runs(self, num_classes: int) -> int:
        return self.restarts

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        return (margin if self.loss == "margin" else cross_entropy)(logits, problem.y)

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        place = torch.zeros_like(run_index)
        return PatchState(
            problem.x.clone(),
            run_index=run_index.clone(),
            place=place,
            momentum=torch.zeros_like(problem.x),
        )

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert isinstance(state, PatchState)
        assert output.grad is not None
        threat, grad = _patch(problem), output.grad
        is_first = state.step == 0
        best_corner = torch.where(grad > 0, 1.0, 0.0).to(grad.dtype)
        if bool(is_first.any()):
            gains = (grad * (best_corner - problem.x)).sum(1, keepdim=True)
            chosen = choose_places(threat, problem, gains, state.run_index)
            state.place = chosen.where(is_first, state.place)
        size = broadcast_to_images(grad.abs().flatten(1).mean(1).clamp_min(1e-30))
        state.momentum = self.momentum * state.momentum + grad / size
        step_size = FIRST_STEP * (1 + torch.cos(math.pi * state.step / self.steps)) / 2
        stepped = state.x_t + broadcast_to_images(step_size.to(grad)) * state.momentum.sign()
        stepped = best_corner.where(broadcast_to_images(is_first), stepped).clamp(0, 1)
        return stepped.where(threat.mask_at(problem.x, state.place), problem.x)


def choose_places(threat: Patch, problem: Problem, gains: Tensor, run_index: Tensor) -> Tensor:
    """(N,) the place of each run: even runs by the sums of ``gains``, odd ones at random."""
    sums, corners = threat.sum_windows(gains), threat.corners(problem.x)
    reach = max(1, threat.window_side(problem.x) // 2)
    place = sums.argmax(1)
    for rank in range(1, int(run_index.max()) // 2 + 1):
        near = ((corners - corners[place][:, None]).abs() < reach).all(2)
        sums = sums.masked_fill(near, -torch.inf)
        later = sums.argmax(1)
        place = later.where((run_index // 2 >= rank) & sums.isfinite().any(1), place)
    random_place = threat.draw_place(problem.x, problem.rng, run_index)
    return random_place.where(run_index % 2 == 1, place)


def _patch(problem: Problem) -> Patch:
    assert isinstance(problem.threat, Patch)
    return problem.threat
