"""Run an attack: checks of the input, chunks of images, verification of the output."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from buttress.attacks.core import Attack, attack_name, check_attack_threat, check_positive
from buttress.attacks.problem import PassCounter, Problem
from buttress.engine.checks import (
    as_image_batch,
    as_label_batch,
    as_sample_ids,
    check_adversarial_examples,
    check_differentiable,
    check_is_module,
    check_model_output,
)
from buttress.engine.cost import attack_passes
from buttress.engine.ensemble import run_ensemble
from buttress.engine.options import AttackOptions
from buttress.engine.processes import default_num_workers
from buttress.engine.result import AttackResult
from buttress.models.eval_mode import eval_mode, model_device, to_model_device
from buttress.models.gradient_flow import PROBE_IMAGES
from buttress.models.surrogate import Surrogate
from buttress.system.cpu import disable_malloc_trim
from buttress.system.progress import scale_progress
from buttress.system.rng import SampleRNG, isolated_rng
from buttress.threats.core import Threat

MIN_PASSES_FOR_PROCESSES = 10_000  # passes: shorter attacks are not worth more processes
MAX_CHUNK_BYTES = 1 << 25  # bytes of images attacked at once: 2,700 of CIFAR-10, 55 of ImageNet


def run_attack(
    attack: Attack,
    model: nn.Module,
    x: Any,
    y: Any,
    threat: Threat,
    *,
    ids: Any = None,
    options: AttackOptions | None = None,
) -> AttackResult:
    """Adversarial examples, with success, margin and passes of each sample.

    Images, labels and ids are tensors, numpy arrays or lists.
    """
    options = options or AttackOptions()
    check_is_module(model)
    x = as_image_batch(x)
    y, ids = as_label_batch(x, y), as_sample_ids(x, ids)
    check_attack_threat(attack, threat)
    check_positive(eot_samples=attack.eot_samples)
    name = attack_name(attack)
    if attack.surrogate is not None and len(x):
        model = attach_surrogate(attack.surrogate, model, x)
        options = dataclasses.replace(options, fast_model=None)
    results = []
    disable_malloc_trim()
    with eval_mode(model), isolated_rng(model_device(model), options.seed, name, "model"):
        for chunk in chunk_slices(x, options.batch_size):
            xb, yb = to_model_device(model, x[chunk]), y[chunk].to(model_device(model))
            num_classes = check_model_output(model, xb[:1], yb).shape[1]
            check_differentiable(attack, model, threat, num_classes)
            rng = SampleRNG(options.seed, name, ids[chunk])
            problem = Problem.pose(model, xb, yb, threat, rng)
            on_progress = scale_progress(
                options.on_progress, chunk.start / len(x), len(xb) / len(x)
            )
            cost = len(xb) * attack_passes(attack, threat, num_classes).macs()
            is_long = cost >= MIN_PASSES_FOR_PROCESSES and attack.eot_samples == 1
            num_workers = default_num_workers(len(xb), xb.device) if is_long else 1
            chunk_options = dataclasses.replace(
                options, on_progress=on_progress, workers=options.workers or num_workers
            )
            result = run_ensemble(attack, problem, chunk_options)
            check_adversarial_examples(name, problem, result)
            results.append(dataclasses.replace(result, x_adv=result.x_adv.to(x)))
    return concat_results(results, x)


def attach_surrogate(surrogate: Any, model: nn.Module, x: Tensor) -> nn.Module:
    """The model with the gradients of a surrogate; its outputs stay the same."""
    with isolated_rng(model_device(model), "surrogate"):
        return Surrogate.parse(surrogate).attach(model, to_model_device(model, x[:PROBE_IMAGES]))


def chunk_slices(x: Tensor, batch_size: int) -> list[slice]:
    """Cuts images into pieces that bound the memory of an attack, whatever their number."""
    length = chunk_size(x.shape[1:], batch_size)
    return [slice(i, min(i + length, len(x))) for i in range(0, len(x), length)]


def chunk_size(shape: Sequence[int], batch_size: int) -> int:
    """How many images of a shape are attacked at once."""
    return max(batch_size, MAX_CHUNK_BYTES // (4 * max(1, math.prod(shape))))


def concat_results(results: list[AttackResult], x: Tensor) -> AttackResult:
    if not results:
        empty_counter = PassCounter.zeros(0, x.device)
        return AttackResult(x.clone(), empty_counter.zero_gradient, x.new_empty(0), empty_counter)
    names = [f.name for f in dataclasses.fields(PassCounter)]
    columns = (torch.cat([getattr(r.counter, name) for r in results]) for name in names)
    points = [r.points for r in results if r.points is not None]
    return AttackResult(
        torch.cat([r.x_adv for r in results]),
        torch.cat([r.fooled for r in results]),
        torch.cat([r.margin for r in results]),
        PassCounter(*columns),
        torch.cat(points) if points else None,
        results[0].stage_names,
    )
