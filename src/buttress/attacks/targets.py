"""The class that a targeted attack aims at; it is never the label."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from buttress.attacks.problem import Problem
from buttress.errors import UserError

TargetRule = Literal["none", "most_likely", "least_likely", "random", "each"]


def choose_target(problem: Problem, rule: TargetRule | int, run_index: Tensor) -> Tensor:
    """(N,) a class for each sample: a given one, by rank of the clean logits, or drawn.

    ``each`` takes the most likely other class in run 0, the next one in run 1 ... A given class
    that is the true one of some sample is refused.
    """
    if isinstance(rule, int):
        if not 0 <= rule < problem.num_classes or bool((problem.y == rule).any()):
            raise UserError(
                f"`target` must be one of the {problem.num_classes} classes and not the label of "
                f"an image, but got {rule}"
            )
        return torch.full_like(problem.y, rule)
    num_others = problem.num_classes - 1
    if rule == "random":
        assert problem.clean_logits is not None
        uniform = problem.rng.draw_uniform(problem.clean_logits[:, :1], run_index)[:, 0]
        return (problem.y + 1 + (uniform * num_others).long()) % problem.num_classes
    rank = {
        "least_likely": torch.full_like(run_index, num_others - 1),
        "most_likely": run_index * 0,
    }.get(rule)
    return rank_targets(problem).gather(
        1, (run_index % num_others if rank is None else rank)[:, None]
    )[:, 0]


def check_target_count(targets: int) -> None:
    """Refuses a negative number of classes to target; 0 means none."""
    if targets < 0:
        raise UserError(f"`targets >= 0` must hold (0: untargeted), but got targets={targets}")


def rank_targets(problem: Problem) -> Tensor:
    """(N, K - 1) the other classes, the nearest first: by what is known, or the clean logits."""
    assert problem.clean_logits is not None
    return (
        sort_other_classes(problem.clean_logits, problem.y)
        if problem.target_order is None
        else problem.target_order
    )


def sort_other_classes(scores: Tensor, y: Tensor) -> Tensor:
    """(N, K - 1) the other classes, those with the highest scores (N, K) first."""
    others = scores.scatter(1, y[:, None], -torch.inf)
    return others.argsort(dim=1, descending=True, stable=True)[:, : scores.shape[1] - 1]
