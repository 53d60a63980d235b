"""Searching in the inference-optimized model, with every success confirmed by the model itself."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from buttress.attacks.core import Attack
from buttress.attacks.losses import is_misclassified, margin_if_finite
from buttress.attacks.problem import Problem
from buttress.engine.batching import run_queue
from buttress.engine.options import AttackOptions
from buttress.engine.result import AttackResult


def search_and_confirm(
    attack: Attack, problem: Problem, start: AttackResult, options: AttackOptions
) -> AttackResult:
    """Searches in the inference-optimized model, if any, and confirms in the model itself.

    A sample counts as fooled only if the model itself misclassifies the point; where it does not,
    the sample is searched again in the model itself.
    """
    fast_model = options.fast_model
    if fast_model is None or fast_model.module is problem.model or problem.eot_samples > 1:
        return run_queue(attack, problem, start, options)
    fast_problem = replace(problem, model=fast_model.module)
    result = run_queue(attack, fast_problem, start.restart_rows(problem.row_numbers()), options)
    unconfirmed = reject_unconfirmed(problem, result, options.batch_size)
    if unconfirmed.any():
        again = start.restart_rows(unconfirmed)
        second_result = run_queue(attack, problem.select(unconfirmed), again, options)
        result.replace_rows(unconfirmed, second_result)
    return result


def reject_unconfirmed(problem: Problem, result: AttackResult, batch_size: int) -> Tensor:
    """(N,) successes that the model itself does not confirm; they no longer count."""
    unconfirmed = torch.zeros_like(result.fooled)
    if not result.fooled.any():
        return unconfirmed  # some models cannot take an empty batch
    for rows in result.fooled.nonzero()[:, 0].split(batch_size):
        with torch.no_grad():
            logits = problem.model(result.x_adv[rows])
        result.counter.forward[rows] += 1
        unconfirmed[rows] = ~is_misclassified(logits, problem.y[rows])
        result.margin[rows] = margin_if_finite(logits, problem.y[rows])
    result.fooled &= ~unconfirmed
    return unconfirmed
