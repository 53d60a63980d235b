"""AutoPGD (Croce and Hein, arXiv:2003.01690): gradient ascent that sets its own step size.

Constants and order of operations follow the reference implementation, because per-sample
results depend on them. The L1 form is in `apgd_l1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from buttress.attacks import apgd_l1
from buttress.attacks.core import (
    ATTACKS,
    Attack,
    AttackState,
    any_or_accelerator,
    broadcast_to_images,
    check_positive,
    copy_rows_,
)
from buttress.attacks.losses import dlr, targeted_dlr, targeted_margin
from buttress.attacks.problem import ModelOutput, Problem
from buttress.attacks.targets import choose_target
from buttress.errors import UserError
from buttress.models.cost import PassCount
from buttress.threats.core import SPACES, Space

RHO = 0.75  # a window in which at most this share of the steps rose halves the step
STEP_WEIGHT = 0.75  # of a move that is new; the rest repeats the last move


@dataclass
class APGDState(AttackState):
    """Per run: the point before the current one, the best point, and how the loss went."""

    target: Tensor
    x_prev: Tensor  # the point before x_t
    step_size: Tensor  # (N,) step size
    best_x: Tensor
    best_grad: Tensor
    best_loss: Tensor
    checkpoint_best_loss: Tensor  # (N,) best loss at the last checkpoint
    prev_loss: Tensor  # (N,) loss at the last point
    num_increases: Tensor  # (N,) rising steps in this window
    was_halved: Tensor  # (N,) the last checkpoint halved the step


@dataclass(frozen=True)
class AutoPGD(Attack):
    """The part that all variants have in common."""

    spaces: ClassVar[tuple[Space, ...]] = SPACES
    steps: int = 100
    restarts: int = 1
    use_larger_eps: bool = True
    early_stop: bool = False

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, restarts=self.restarts)

    @property
    def max_steps(self) -> int:
        return self.steps + 2  # L1 evaluates again where a phase begins; other norms end before

    def passes_per_run(self, space: Space, num_classes: int) -> PassCount:
        steps = self.phase_table.num_steps if space == "L1" else self.steps
        return PassCount(steps + 1, steps)

    def num_runs(self, num_classes: int) -> int:
        return self.restarts

    def target_classes(self, problem: Problem, run_index: Tensor) -> Tensor:
        return problem.y

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        target = self.target_classes(problem, run_index)
        if problem.space == "L1":
            return apgd_l1.init_l1_state(problem, run_index, target, self.phase_table)
        x_0, zero = problem.random_start_on_sphere(run_index), problem.x.new_zeros(len(problem.x))
        return APGDState(
            x_0,
            target,
            x_prev=x_0.clone(),
            step_size=zero + 2 * problem.threat.radius,
            best_x=x_0.clone(),
            best_grad=torch.zeros_like(x_0),
            best_loss=zero - torch.inf,
            checkpoint_best_loss=zero - torch.inf,
            prev_loss=zero.clone(),  # the first point of the history is compared with zero
            num_increases=zero.clone(),
            was_halved=zero == 0,
        )

    @property
    def phase_table(self) -> apgd_l1.PhaseTable:
        return apgd_l1.build_phase_table(self.steps, self.use_larger_eps)

    def grad_mask(self, state: AttackState) -> bool | Tensor:
        return ~self.finished_mask(state) if state.step.device.type == "cpu" else True

    def finished_mask(self, state: AttackState) -> Tensor:
        if not isinstance(state, apgd_l1.APGDL1State):
            return state.step >= self.steps
        is_over = state.step >= self.phase_table.num_steps
        if self.early_stop:
            is_over |= apgd_l1.should_stop_early(state, self.phase_table)
        return is_over

    def valid_mask(self, problem: Problem, state: AttackState, fooled: Tensor) -> Tensor | None:
        if isinstance(state, apgd_l1.APGDL1State):
            return apgd_l1.is_last_phase(state, self.phase_table)
        return None

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        assert output.grad is not None
        if isinstance(state, apgd_l1.APGDL1State):
            return apgd_l1.next_l1_points(problem, state, output, self.phase_table)
        assert isinstance(state, APGDState)
        grad, x_t = _update_best(state, output, self.steps), state.x_t
        step = problem.threat.step_direction(x_t, grad).mul_(broadcast_to_images(state.step_size))
        x_step = problem.scale_into_ball_(step.add_(x_t))
        step_weight = torch.where(state.step == 0, 1.0, STEP_WEIGHT).to(x_t.dtype)
        x_next = torch.lerp(x_t, x_step, broadcast_to_images(step_weight))
        x_next.addcmul_(x_t - state.x_prev, broadcast_to_images(1 - step_weight))
        state.x_prev = x_t
        return problem.scale_into_ball_(x_next)


def _update_best(state: APGDState, output: ModelOutput, steps: int) -> Tensor:
    """Updates the state with the output at ``x_t``; returns the gradient of the next step."""
    assert output.grad is not None
    is_better = output.loss > state.best_loss
    copy_rows_(state.best_x, is_better, state.x_t)
    copy_rows_(state.best_grad, is_better, output.grad)
    state.best_loss = output.loss.maximum(state.best_loss)
    is_start = state.step == 0
    state.checkpoint_best_loss = output.loss.where(is_start, state.checkpoint_best_loss)
    state.num_increases += ((output.loss > state.prev_loss) & ~is_start).to(
        state.num_increases.dtype
    )
    state.prev_loss = output.loss.where(~is_start, state.prev_loss)
    window = _windows_on(state.step.device, steps)[state.step.clamp_max(steps)]
    if any_or_accelerator(window > 0):
        return _halve_stalled_steps(state, window, output.grad)
    return output.grad


def _halve_stalled_steps(state: APGDState, window: Tensor, grad: Tensor) -> Tensor:
    """Halves the step and goes back to the best point where the loss oscillates or stagnates."""
    is_checkpoint = window > 0
    oscillates = state.num_increases <= RHO * window
    stagnates = ~state.was_halved & (state.checkpoint_best_loss >= state.best_loss)
    should_halve = is_checkpoint & (oscillates | stagnates)
    state.step_size = torch.where(should_halve, state.step_size / 2, state.step_size)
    state.was_halved = should_halve.where(is_checkpoint, state.was_halved)
    state.checkpoint_best_loss = state.best_loss.where(is_checkpoint, state.checkpoint_best_loss)
    state.num_increases = state.num_increases.masked_fill(is_checkpoint, 0)
    x_t, best_or_current_grad = state.x_t.clone(), grad.clone()
    copy_rows_(x_t, should_halve, state.best_x)
    copy_rows_(best_or_current_grad, should_halve, state.best_grad)
    state.x_t = x_t
    return best_or_current_grad


@lru_cache
def _windows_on(device: torch.device, steps: int) -> Tensor:
    """`checkpoint_windows` on a device, copied there once."""
    return checkpoint_windows(steps).to(device)


@lru_cache
def checkpoint_windows(steps: int) -> Tensor:
    """(steps + 1,) the length of the window that ends after so many steps, 0 where none ends.

    The first is 22% of the steps, each next one 3% shorter, down to 6%.
    """
    window_lengths = torch.zeros(steps + 1)
    length, step = max(int(0.22 * steps), 1), 0
    while step + length <= steps:
        step += length
        window_lengths[step] = length
        length = max(length - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))
    return window_lengths


@ATTACKS.register("apgd-ce", paper="arXiv:2003.01690", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class APGDCE(AutoPGD):
    r"""AutoPGD on the cross-entropy.

    .. math:: x_{t+1} = \Pi\bigl(x_t + a\,(u - x_t) + (1-a)(x_t - x_{t-1})\bigr), \quad
              u = \Pi(x_t + \eta\, s(\nabla))

    with a = 0.75 (1 in the first step) and :math:`\eta` = 2 eps at first. After windows of 22, 19,
    16 ... 6 steps (of 100) :math:`\eta` is halved and the best point taken up again, where at most
    75% of the steps rose or the best loss did not. In L1 (arXiv:2103.01208): balls of 3, 2 and 1
    eps for 30, 30 and 40% of the steps, steps on the largest gradients only, their number from the
    sparsity of the best point; ``use_larger_eps=False`` leaves the larger balls out. With
    ``early_stop`` a run in L1 ends early that fooled the model nowhere in the ball of 2 eps. In L0
    and for patches, which the papers leave out, :math:`\Pi` is the nearest member, :math:`s` the
    gradient over the mean of its absolute values, and :math:`\eta` begins at 0.32.

    As in the reference :math:`\Pi` draws a point straight towards the image and clips it in L2,
    which costs a fraction of the exact projection. Departures from it: the sparsity in L1 counts
    true changes, not rounding residue; noise per sample.
    """


@ATTACKS.register("apgd-dlr", paper="arXiv:2003.01690", tags=("white_box", "iterative"))
@dataclass(frozen=True)
class APGDDLR(AutoPGD):
    r"""AutoPGD on the difference of logits ratio.

    .. math:: -\frac{z_y - \max_{k \ne y} z_k}{z_{(1)} - z_{(3)}}

    Two classes have no third logit: there it is the plain margin.
    """

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        return dlr(logits, problem.y)


@ATTACKS.register("apgd-t", paper="arXiv:2003.01690", tags=("white_box", "iterative", "targeted"))
@dataclass(frozen=True)
class APGDT(AutoPGD):
    r"""AutoPGD on the targeted ratio, for each of the ``targets`` most likely other classes.

    .. math:: -\frac{z_y - z_t}{z_{(1)} - (z_{(3)} + z_{(4)})/2}

    Targets by the clean logits, at most as many as there are other classes. Any wrong class is a
    success. With fewer than four classes, and with ``loss="margin"``, the loss is z_t - z_y.
    ``skip_targets`` passes over the first classes; where no others are left it begins again.
    """

    targets: int = 9
    loss: Literal["dlr", "margin"] = "dlr"
    skip_targets: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(targets=self.targets)
        if self.skip_targets < 0:
            raise UserError(f"`skip_targets >= 0` must hold, but got {self.skip_targets}")

    def num_runs(self, num_classes: int) -> int:
        return max(1, min(self.targets, num_classes - 1 - self.skip_targets)) * self.restarts

    def target_ranks(self, num_classes: int) -> Tensor:
        return self._target_rank(torch.arange(self.num_runs(num_classes)), num_classes)

    def _target_rank(self, run_index: Tensor, num_classes: int) -> Tensor:
        return (self.skip_targets + run_index // self.restarts) % (num_classes - 1)

    def target_classes(self, problem: Problem, run_index: Tensor) -> Tensor:
        return choose_target(problem, "each", self._target_rank(run_index, problem.num_classes))

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        assert isinstance(state, APGDState | apgd_l1.APGDL1State)
        loss_fn = targeted_dlr if self.loss == "dlr" else targeted_margin
        return loss_fn(logits, problem.y, state.target)
