"""AutoPGD in L1 (Croce and Hein, arXiv:2103.01208): sparse steps, and larger balls first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from buttress.attacks.core import AttackState, any_or_accelerator, broadcast_to_images, copy_rows_
from buttress.attacks.losses import margin
from buttress.attacks.problem import ModelOutput, Problem

SPARSITY_FACTOR = 1.5  # the next step moves this many times fewer coordinates than x_best did
STEP_DECAY = 1.5  # the step is divided by this where the best point does not become sparser
INITIAL_DENSITY = 0.2  # share of the coordinates that move at first


class PhaseTable(NamedTuple):
    """Tables over the evaluations of a run: which ball, and which updates."""

    radius: Tensor  # in units of eps
    is_phase_start: Tensor  # the first evaluation of a phase
    is_phase_end: Tensor  # the last evaluation of every phase but the last
    is_update: Tensor  # step size and sparsity are set again
    is_back_at_eps: Tensor  # the first evaluation in the eps-ball, after larger ones
    num_steps: int


@dataclass
class APGDL1State(AttackState):
    """Per run: the step, the best point of this phase, and how sparse it is."""

    target: Tensor
    rel_step_size: Tensor  # (N,) in units of eps
    best_x: Tensor
    best_grad: Tensor
    best_loss: Tensor
    num_changed: Tensor  # (N,) coordinates that the best point changed at the last update
    density: Tensor  # (N,) share of the coordinates that the next step moves
    fooled_in_phase: Tensor  # (N,) bool: some point of this phase was misclassified


@lru_cache
def build_phase_table(steps: int, use_larger_eps: bool) -> PhaseTable:
    """Balls of 3, 2 and 1 eps for 30, 30 and 40% of the steps, or one ball."""
    steps_per_large_ball = ceil(0.3 * steps)
    phases = (
        [
            (3.0, steps_per_large_ball),
            (2.0, steps_per_large_ball),
            (1.0, steps - 2 * steps_per_large_ball),
        ]
        if use_larger_eps
        else [(1.0, steps)]
    )
    phases = [(r, n) for r, n in phases if n > 0]
    rows = []
    for number, (radius, n) in enumerate(phases):
        window = max(int(0.04 * n), 1)
        for i in range(n + 1):
            is_over = i == n and number < len(phases) - 1
            rows.append((radius, i == 0, is_over, i > 0 and i % window == 0))
    table = torch.tensor(rows)  # (evaluations, 4)
    radii = table[:, 0]
    if radii[-1] != 1:  # so few steps that only larger balls were left
        radii = torch.ones_like(radii)
    flags = table > 0
    is_return = (radii == 1) & (radii.roll(1) > 1)
    return PhaseTable(radii, flags[:, 1], flags[:, 2], flags[:, 3], is_return, len(rows) - 1)


def is_last_phase(state: AttackState, phases: PhaseTable) -> Tensor:
    return _lookup(phases.radius, state) == 1


def should_stop_early(state: APGDL1State, phases: PhaseTable) -> Tensor:
    """(N,) runs back in the eps-ball that fooled the model nowhere in the ball of 2 eps."""
    return _lookup(phases.is_back_at_eps, state) & ~state.fooled_in_phase


def init_l1_state(
    problem: Problem, run_index: Tensor, target: Tensor, phases: PhaseTable
) -> APGDL1State:
    x, noise = problem.x, problem.rng.draw_normal(problem.x, run_index)
    zero = x.new_zeros(len(x))
    radius = phases.radius[0].to(x)
    x_0 = problem.project(x + noise, zero + radius)
    return APGDL1State(
        x_0, target,
        rel_step_size=zero + radius,
        best_x=x_0.clone(),
        best_grad=torch.zeros_like(x_0),
        best_loss=zero - torch.inf,
        num_changed=zero + x[:1].numel(),
        density=zero + INITIAL_DENSITY,
        fooled_in_phase=zero > 0,
    )  # fmt: skip


def next_l1_points(
    problem: Problem, state: APGDL1State, output: ModelOutput, phases: PhaseTable
) -> Tensor:
    assert output.grad is not None
    is_first = _lookup(phases.is_phase_start, state)
    state.fooled_in_phase = (margin(output.logits, problem.y) > 0) | (
        state.fooled_in_phase & ~is_first
    )
    is_better = (output.loss > state.best_loss) | is_first
    copy_rows_(state.best_x, is_better, state.x_t)
    copy_rows_(state.best_grad, is_better, output.grad)
    state.best_loss = output.loss.where(is_better, state.best_loss)
    grad, radius = output.grad, _lookup(phases.radius, state).to(state.rel_step_size)
    update = _lookup(phases.is_update, state)
    if any_or_accelerator(update):
        grad = _update_step_and_density(problem, state, radius, update, grad)
    step = _sparse_signs(grad, state.density) * broadcast_to_images(
        state.rel_step_size * problem.ball.eps
    )
    x_next = problem.project(step.add_(state.x_t), radius)
    is_phase_end = _lookup(phases.is_phase_end, state)
    if any_or_accelerator(is_phase_end):
        x_next = _start_next_phase(problem, state, phases, is_phase_end, x_next)
    return x_next


def _update_step_and_density(
    problem: Problem, state: APGDL1State, radius: Tensor, is_update: Tensor, grad: Tensor
) -> Tensor:
    """Sets step and sparsity from the best point; where it became sparser, continues from there."""
    changed = _count_changed(problem.x, state.best_x)
    is_sparser = changed < 0.95 * state.num_changed
    eta = radius.where(is_sparser, state.rel_step_size / STEP_DECAY)
    state.rel_step_size = eta.clamp(radius / 10, radius).where(is_update, state.rel_step_size)
    density = _next_density(changed, problem.x[0].numel())
    state.density = density.where(is_update, state.density)
    state.num_changed = changed.where(is_update, state.num_changed)
    returns_to_best = is_update & is_sparser
    x_t, best_or_current_grad = state.x_t.clone(), grad.clone()
    copy_rows_(x_t, returns_to_best, state.best_x)
    copy_rows_(best_or_current_grad, returns_to_best, state.best_grad)
    state.x_t = x_t
    return best_or_current_grad


def _start_next_phase(
    problem: Problem, state: APGDL1State, phases: PhaseTable, is_phase_end: Tensor, x_next: Tensor
) -> Tensor:
    """Where a phase is over, begins the next one at its best point, in a smaller ball."""
    next_step = (state.step + 1).clamp_max(phases.num_steps)
    radius = phases.radius.to(state.rel_step_size)[next_step]
    start = problem.project(state.best_x, radius)
    copy_rows_(x_next, is_phase_end, start)
    state.rel_step_size = radius.where(is_phase_end, state.rel_step_size)
    changed = _count_changed(problem.x, start)
    state.num_changed = changed.where(is_phase_end, state.num_changed)
    state.density = _next_density(changed, problem.x[0].numel()).where(is_phase_end, state.density)
    return x_next


def _next_density(num_changed: Tensor, size: int) -> Tensor:
    """(N,) share of the coordinates to move next; two become one, or they would stay two."""
    return num_changed.where(num_changed > 2, SPARSITY_FACTOR) / (SPARSITY_FACTOR * size)


def _count_changed(x: Tensor, x_t: Tensor) -> Tensor:
    """(N,) coordinates that differ."""
    return (x != x_t).flatten(1).sum(1).to(x.dtype)


def _sparse_signs(grad: Tensor, density: Tensor) -> Tensor:
    """Signs of each row's largest gradients, of L1 norm one; ties are kept."""
    flat = grad.flatten(1)
    count = (density * flat.shape[1] - 1e-4).ceil().long().clamp(1, flat.shape[1])
    size = flat.abs()
    top = size.topk(int(count.max()), dim=1).values
    threshold = top.gather(1, count[:, None] - 1)
    signs = flat.sign().masked_fill_(size < threshold, 0)
    return (signs / (signs.abs().sum(1, keepdim=True) + 1e-10)).view_as(grad)


def _lookup(table: Tensor, state: AttackState) -> Tensor:
    return table.to(state.step.device)[state.step.clamp_max(len(table) - 1)]
