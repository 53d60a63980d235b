"""Which class a targeted attack aims at. It is never the true one."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from buttress.attacks.problem import Problem
from buttress.errors import UserError

Target = Literal["none", "most_likely", "least_likely", "random", "each"]


def choose_target(problem: Problem, how: Target | int, run: Tensor) -> Tensor:
    """(N,) a class for each sample: a given one, by rank of the clean logits, or drawn.

    ``each`` takes the most likely other class in run 0, the next one in run 1 ... A given class
    that is the true one of some sample is refused.
    """
    if isinstance(how, int):
        if not 0 <= how < problem.num_classes or bool((problem.y == how).any()):
            raise UserError(
                f"`target` must be one of the {problem.num_classes} classes and not the label of "
                f"an image, but got {how}"
            )
        return torch.full_like(problem.y, how)
    others = problem.num_classes - 1
    if how == "random":
        assert problem.clean is not None
        draw = problem.streams.uniform(problem.clean[:, :1], run)[:, 0]
        return (problem.y + 1 + (draw * others).long()) % problem.num_classes
    rank = {"least_likely": torch.full_like(run, others - 1), "most_likely": run * 0}.get(how)
    return ranked(problem).gather(1, (run % others if rank is None else rank)[:, None])[:, 0]


def ranked(problem: Problem) -> Tensor:
    """(N, K - 1) the other classes, the nearest first: by what is known, or the clean logits."""
    assert problem.clean is not None
    return by_distance(problem.clean, problem.y) if problem.order is None else problem.order


def by_distance(scores: Tensor, y: Tensor) -> Tensor:
    """(N, K - 1) the other classes, those with the highest scores (N, K) first."""
    others = scores.scatter(1, y[:, None], -torch.inf)
    return others.argsort(dim=1, descending=True, stable=True)[:, : scores.shape[1] - 1]
