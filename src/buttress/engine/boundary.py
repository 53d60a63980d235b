"""The smallest perturbation on the path of an attack that walks along the decision boundary."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from buttress.attacks.core import attack_name
from buttress.attacks.fab import FABBase
from buttress.attacks.losses import is_misclassified
from buttress.attacks.problem import PassCounter, Problem
from buttress.engine.checks import as_image_batch, as_label_batch, as_sample_ids
from buttress.engine.options import AttackOptions
from buttress.engine.run import attach_surrogate
from buttress.models.eval_mode import eval_mode, model_device, to_model_device
from buttress.system.rng import SampleRNG, isolated_rng
from buttress.threats.norm_ball import NormBall


class NearestPoints(NamedTuple):
    """The nearest misclassified point of each sample."""

    x_adv: Tensor  # (N, C, H, W); the image itself where none was found
    distance: Tensor  # (N,) float64; 0 if the image is misclassified, inf if none was found
    passes: Tensor  # (N,) forward and backward passes


def nearest_misclassified(
    attack: FABBase,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: NormBall,
    *,
    ids: Tensor | None = None,
    options: AttackOptions | None = None,
) -> NearestPoints:
    """The nearest misclassified point that FAB comes to, in all of its runs.

    The norm is that of ``threat``; its eps only scales the random starts of restarts.
    """
    options = options or AttackOptions()
    x = as_image_batch(x)
    y, ids, name = as_label_batch(x, y), as_sample_ids(x, ids), attack_name(attack)
    if attack.surrogate is not None:
        model = attach_surrogate(attack.surrogate, model, x)
    parts = []
    with eval_mode(model), isolated_rng(model_device(model), options.seed, name, "model"):
        for rows in torch.arange(len(x)).split(options.batch_size):
            xb = to_model_device(model, x[rows])
            rng = SampleRNG(options.seed, name, ids[rows])
            problem = Problem(
                model,
                xb,
                y[rows].to(xb.device),
                threat,
                rng,
                counter=PassCounter.zeros(len(xb), xb.device),
                eot_samples=attack.eot_samples,
            )
            parts.append(_walk(attack, problem))
    columns = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    return NearestPoints(*columns)


def _walk(attack: FABBase, problem: Problem) -> NearestPoints:
    """All runs of one batch, one after the other."""
    x, counter = problem.x, problem.counter
    assert counter is not None
    clean = problem.evaluate_at(x, lambda logits: logits[:, 0], grad=False)
    problem = replace(problem, clean_logits=clean.logits)
    is_wrong = clean.always_misclassified
    is_wrong = is_misclassified(clean.logits, problem.y) if is_wrong is None else is_wrong
    zero = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    nearest, distance = x.clone(), zero.where(is_wrong, torch.inf)
    for run in range(attack.num_runs(clean.logits.shape[1])):
        state = attack.init_state(problem, torch.full_like(problem.y, run))
        while True:
            output = attack.evaluate(problem, state)
            fooled = output.always_misclassified
            fooled = is_misclassified(output.logits, problem.y) if fooled is None else fooled
            size = problem.ball.perturbation_size(x, state.x_t).double()
            is_nearer = fooled & (size < distance)
            distance = size.where(is_nearer, distance)
            nearest[is_nearer] = state.x_t[is_nearer]
            is_over = attack.finished_mask(state)
            if is_over is not None and bool(is_over.all()):
                break
            state.x_t = attack.next_points(problem, state, output)
            state.step += 1
    return NearestPoints(nearest, distance, counter.forward + counter.backward)
