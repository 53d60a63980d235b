"""The last point of one run: what adversarial training and the analyses of gradients use."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from buttress.attacks.core import Attack, copy_rows_
from buttress.attacks.problem import ModelOutput, Problem

HoldRule = (
    Callable[[ModelOutput], Tensor | None] | None
)  # (N,) samples that do not move on; None: all do


def last_iterate(attack: Attack, problem: Problem, hold: HoldRule = None) -> Tensor:
    """The last point of one run, as adversarial training uses it, for ``length`` passes."""
    state = attack.init_state(problem, torch.zeros_like(problem.y))
    for _ in range(attack.max_steps):
        output = attack.evaluate(problem, state)
        is_held, x_prev = None if hold is None else hold(output), state.x_t
        x_next = attack.next_points(problem, state, output)
        if is_held is not None:
            copy_rows_(x_next, is_held, x_prev)
        state.x_t = x_next
        state.step += 1
    return state.x_t
