"""Which class a targeted attack aims at. It is never the true one."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from buttress.attacks.problem import Problem

Target = Literal["none", "most_likely", "least_likely", "random", "each"]


def choose_target(problem: Problem, how: Target, run: int = 0) -> Tensor:
    """(N,) a class for each sample: by rank of the clean logits, or drawn from the others.

    ``each`` takes the most likely other class in the first run, the next one in the second ...
    """
    assert problem.clean is not None
    if how == "random":
        draw = problem.streams.uniform(problem.clean[:, :1], run)[:, 0]
        offset = 1 + (draw * (problem.num_classes - 1)).long()
        return (problem.y + offset) % problem.num_classes
    rank = {"least_likely": -1, "most_likely": 0}.get(how, run % (problem.num_classes - 1))
    return ranked(problem)[:, rank]


def ranked(problem: Problem) -> Tensor:
    """(N, K - 1) the other classes, the most likely first, by the clean logits."""
    assert problem.clean is not None
    others = problem.clean.scatter(1, problem.y[:, None], -torch.inf)
    return others.argsort(dim=1, descending=True, stable=True)[:, : problem.num_classes - 1]
