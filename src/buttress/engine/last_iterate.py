"""The last point of one run, as adversarial training and gradient analyses use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from buttress.attacks.core import Attack, copy_rows_
from buttress.attacks.problem import ModelOutput, Problem

# (N,) samples that keep their point; None: none does.
HoldRule = Callable[[ModelOutput], Tensor | None] | None


def last_iterate(attack: Attack, problem: Problem, hold: HoldRule = None) -> Tensor:
    """The image of the last point of one run, after ``attack.max_steps`` passes."""
    problem = replace(problem, rng=replace(problem.rng, only_restart=0))
    state = attack.init_state(problem, torch.zeros_like(problem.y))
    for _ in range(attack.max_steps):
        output = attack.evaluate(problem, state)
        keeps_point, x_prev = None if hold is None else hold(output), state.x_t
        x_next = attack.next_points(problem, state, output)
        if keeps_point is not None:
            copy_rows_(x_next, keeps_point, x_prev)
        state.x_t = x_next
        state.step += 1
    with torch.no_grad():
        return problem.images_at(state.x_t)
