"""AutoPGD in L1 (Croce and Hein, arXiv:2103.01208): sparse steps, and larger balls first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from buttress.attacks.core import State, column, put, some
from buttress.attacks.losses import margin
from buttress.attacks.problem import Problem, Seen

SPARSE = 1.5  # the next step moves this many times fewer coordinates than the best point changed
SLOWER = 1.5  # the step is divided by this where the best point does not become sparser
FIRST = 0.2  # share of the coordinates that move at first


class Phases(NamedTuple):
    """Tables over the looks of a run: which ball, and what is due there."""

    radius: Tensor  # in units of eps
    is_first: Tensor  # the first look of a phase
    is_over: Tensor  # the last look of a phase but the last
    is_update: Tensor  # step size and sparsity are set anew
    is_return: Tensor  # the first look in the ball itself, after larger ones
    length: int


@dataclass
class L1State(State):
    """Per run: the step, the best point of this phase, and how sparse it is."""

    target: Tensor
    eta: Tensor  # (N,) in units of eps
    best_x: Tensor
    best_grad: Tensor
    best_loss: Tensor
    support: Tensor  # (N,) coordinates that the best point changed at the last update
    density: Tensor  # (N,) share of the coordinates that the next step moves
    fooled: Tensor  # (N,) bool: some point of this phase was misclassified


@lru_cache
def phases_of(steps: int, wide_start: bool) -> Phases:
    """Balls of 3, 2 and 1 eps for 30, 30 and 40% of the steps, or one ball."""
    first = ceil(0.3 * steps)
    plan = [(3.0, first), (2.0, first), (1.0, steps - 2 * first)] if wide_start else [(1.0, steps)]
    plan = [(r, n) for r, n in plan if n > 0]
    rows = []
    for number, (radius, n) in enumerate(plan):
        window = max(int(0.04 * n), 1)
        for i in range(n + 1):
            is_over = i == n and number < len(plan) - 1
            rows.append((radius, i == 0, is_over, i > 0 and i % window == 0))
    table = torch.tensor(rows)  # (looks, 4)
    radii = table[:, 0]
    if radii[-1] != 1:  # so few steps that only larger balls were left
        radii = torch.ones_like(radii)
    flags = table > 0
    is_return = (radii == 1) & (radii.roll(1) > 1)
    return Phases(radii, flags[:, 1], flags[:, 2], flags[:, 3], is_return, len(rows) - 1)


def is_last_phase(state: State, phases: Phases) -> Tensor:
    return _at(phases.radius, state) == 1


def is_hopeless(state: L1State, phases: Phases) -> Tensor:
    """(N,) runs back in the ball that found nothing in one twice as large."""
    return _at(phases.is_return, state) & ~state.fooled


def begin(problem: Problem, run: Tensor, target: Tensor, phases: Phases) -> L1State:
    x, noise = problem.x, problem.streams.normal(problem.x, run)
    zero = x.new_zeros(len(x))
    radius = phases.radius[0].to(x)
    x_0 = problem.project(x + noise, zero + radius)
    return L1State(
        x_0, target,
        eta=zero + radius,
        best_x=x_0.clone(),
        best_grad=torch.zeros_like(x_0),
        best_loss=zero - torch.inf,
        support=zero + x[:1].numel(),
        density=zero + FIRST,
        fooled=zero > 0,
    )  # fmt: skip


def advance(problem: Problem, state: L1State, seen: Seen, phases: Phases) -> Tensor:
    assert seen.grad is not None
    is_first = _at(phases.is_first, state)
    state.fooled = (margin(seen.logits, problem.y) > 0) | (state.fooled & ~is_first)
    better = (seen.loss > state.best_loss) | is_first
    put(state.best_x, better, state.x_t)
    put(state.best_grad, better, seen.grad)
    state.best_loss = seen.loss.where(better, state.best_loss)
    grad, radius = seen.grad, _at(phases.radius, state).to(state.eta)
    update = _at(phases.is_update, state)
    if some(update):
        grad = _update(problem, state, radius, update, grad)
    step = _sparse_signs(grad, state.density) * column(state.eta * problem.threat.eps)
    new = problem.project(step.add_(state.x_t), radius)
    over = _at(phases.is_over, state)
    if some(over):
        new = _next_phase(problem, state, phases, over, new)
    return new


def _update(
    problem: Problem, state: L1State, radius: Tensor, update: Tensor, grad: Tensor
) -> Tensor:
    """Sets step and sparsity from the best point; where it became sparser, goes on from there."""
    changed = _changed(problem.x, state.best_x)
    shrinks = changed < 0.95 * state.support
    eta = radius.where(shrinks, state.eta / SLOWER)
    state.eta = eta.clamp(radius / 10, radius).where(update, state.eta)
    density = _density(changed, problem.x[0].numel())
    state.density = density.where(update, state.density)
    state.support = changed.where(update, state.support)
    back = update & shrinks
    x_t, slope = state.x_t.clone(), grad.clone()
    put(x_t, back, state.best_x)
    put(slope, back, state.best_grad)
    state.x_t = x_t
    return slope


def _next_phase(
    problem: Problem, state: L1State, phases: Phases, over: Tensor, new: Tensor
) -> Tensor:
    """Where a phase is over, begins the next one at its best point, in a smaller ball."""
    later = (state.step + 1).clamp_max(phases.length)
    radius = phases.radius.to(state.eta)[later]
    start = problem.project(state.best_x, radius)
    put(new, over, start)
    state.eta = radius.where(over, state.eta)
    changed = _changed(problem.x, start)
    state.support = changed.where(over, state.support)
    state.density = _density(changed, problem.x[0].numel()).where(over, state.density)
    return new


def _density(changed: Tensor, size: int) -> Tensor:
    """(N,) share of the coordinates to move next; two become one, or they would stay two."""
    return changed.where(changed > 2, SPARSE) / (SPARSE * size)


def _changed(x: Tensor, x_t: Tensor) -> Tensor:
    """(N,) coordinates that differ."""
    return (x != x_t).flatten(1).sum(1).to(x.dtype)


def _sparse_signs(grad: Tensor, density: Tensor) -> Tensor:
    """Signs of each row's largest gradients, of L1 norm one; ties are kept."""
    flat = grad.flatten(1)
    count = (density * flat.shape[1] - 1e-4).ceil().long().clamp(1, flat.shape[1])
    size = flat.abs()
    top = size.topk(int(count.max()), dim=1).values
    least = top.gather(1, count[:, None] - 1)
    signs = flat.sign().masked_fill_(size < least, 0)
    return (signs / (signs.abs().sum(1, keepdim=True) + 1e-10)).view_as(grad)


def _at(table: Tensor, state: State) -> Tensor:
    return table.to(state.step.device)[state.step.clamp_max(len(table) - 1)]
