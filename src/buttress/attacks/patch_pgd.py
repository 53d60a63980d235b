"""Gradient ascent on the content of a patch, at places chosen by the gradient and at random."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from buttress.attacks.core import ATTACKS, Attack, AttackState, broadcast_to_images, check_positive
from buttress.attacks.losses import cross_entropy, margin, targeted_margin
from buttress.attacks.problem import ModelOutput, Problem
from buttress.attacks.targets import check_target_count, choose_target
from buttress.errors import UserError
from buttress.threats.core import Space
from buttress.threats.patch import Patch

FIRST_STEP = 0.5  # of the range of values
RUNS_PER_TARGET = 2  # one at a place by the gradient, one at a random place


@dataclass
class PatchState(AttackState):
    """Per run: its number and target, the place of the patch, and the gradient's momentum."""

    run_index: Tensor
    target: Tensor  # (N,) the class that it is driven to
    place: Tensor  # (N,) a row of `Patch.corners`
    momentum: Tensor


@ATTACKS.register("patch_pgd", paper="arXiv:1712.09665", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class PatchPGD(Attack):
    r"""Sign steps inside a square, one place per run.

    Each pair of runs raises the margin :math:`z_t - z_y` of one class t, the ``targets`` most
    likely other classes in turn; 0 leaves all runs untargeted. The first gradient, at the image,
    says by how much each pixel can raise the loss: with :math:`g_i \max(0, 1 - x_i)` or
    :math:`-g_i x_i` of every value, the square with the largest sum is the place of the first run
    of a class, the next one that overlaps no earlier one by more than half that of its third, and
    so on; every second run takes a random place. There the values begin at the best of the linear
    model and move by sign steps with momentum whose length falls as a cosine from 1/2 to 0. The
    search for places is our own.
    """

    spaces: ClassVar[tuple[Space, ...]] = ("patch",)
    steps: int = 25
    restarts: int = 12
    loss: Literal["margin", "ce"] = "margin"
    momentum: float = 0.8
    targets: int = 3

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, restarts=self.restarts)
        check_target_count(self.targets)
        if not 0 <= self.momentum < 1:
            raise UserError(f"`0 <= momentum < 1` must hold, but got momentum={self.momentum}")

    @property
    def max_steps(self) -> int:
        return self.steps

    def num_runs(self, num_classes: int) -> int:
        return self.restarts

    def _num_targets(self, problem: Problem) -> int:
        return max(1, min(self.targets, problem.num_classes - 1))

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        assert isinstance(state, PatchState)
        if self.targets and self.loss == "margin":
            return targeted_margin(logits, problem.y, state.target)
        if self.targets:
            return -cross_entropy(logits, state.target)
        return (margin if self.loss == "margin" else cross_entropy)(logits, problem.y)

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        place = torch.zeros_like(run_index)
        target_rank = run_index // RUNS_PER_TARGET % self._num_targets(problem)
        return PatchState(
            problem.x.clone(),
            run_index=run_index.clone(),
            target=choose_target(problem, "each", target_rank),
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
            runs_per_rank = RUNS_PER_TARGET * self._num_targets(problem)
            chosen = choose_places(threat, problem, gains, state.run_index, runs_per_rank)
            state.place = chosen.where(is_first, state.place)
        size = broadcast_to_images(grad.abs().flatten(1).mean(1).clamp_min(1e-30))
        state.momentum = self.momentum * state.momentum + grad / size
        step_size = FIRST_STEP * (1 + torch.cos(math.pi * state.step / self.steps)) / 2
        stepped = state.x_t + broadcast_to_images(step_size.to(grad)) * state.momentum.sign()
        stepped = best_corner.where(broadcast_to_images(is_first), stepped).clamp(0, 1)
        return stepped.where(threat.mask_at(problem.x, state.place), problem.x)


def choose_places(
    threat: Patch, problem: Problem, gains: Tensor, run_index: Tensor, runs_per_rank: int
) -> Tensor:
    """(N,) the place of each run: even runs by the sums of ``gains``, odd ones at random.

    After ``runs_per_rank`` runs the targets begin again, at the next best place of each.
    """
    sums, corners = threat.sum_windows(gains), threat.corners(problem.x)
    reach = max(1, threat.window_side(problem.x) // 2)
    place = sums.argmax(1)
    for rank in range(1, int(run_index.max()) // runs_per_rank + 1):
        near = ((corners - corners[place][:, None]).abs() < reach).all(2)
        sums = sums.masked_fill(near, -torch.inf)
        later = sums.argmax(1)
        is_later = (run_index // runs_per_rank >= rank) & sums.isfinite().any(1)
        place = later.where(is_later, place)
    random_place = threat.draw_place(problem.x, problem.rng, run_index)
    return random_place.where(run_index % 2 == 1, place)


def _patch(problem: Problem) -> Patch:
    assert isinstance(problem.threat, Patch)
    return problem.threat
