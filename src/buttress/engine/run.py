"""The public way to attack: checks what goes in, guards the model, verifies what comes out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from buttress.attacks.core import ATTACKS, Attack, attack_name, check_attack_norm, create_attack
from buttress.attacks.problem import PassCounter, Problem
from buttress.engine.cost import surviving_sample_cost
from buttress.engine.ensemble import run_ensemble
from buttress.engine.options import AttackOptions
from buttress.engine.processes import default_num_workers
from buttress.engine.result import AttackResult
from buttress.errors import RunError, UserError
from buttress.models.eval_mode import eval_mode, is_differentiable, model_device, to_model_device
from buttress.system.cpu import disable_malloc_trim
from buttress.system.progress import scale_progress
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import Threat


def attack(
    name: str,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: str | Threat,
    seed: int = 0,
    ids: Tensor | None = None,
    **args: Any,
) -> Tensor:
    """Adversarial examples for ``x``, inside the threat's ball and [0, 1].

    Args:
        name: a registered attack; ``buttress list attacks`` shows all.
        model: any network from [0, 1] images to logits.
        x: (N, C, H, W) images in [0, 1].
        y: (N,) labels.
        threat: like ``Linf:8/255``.
        seed: with ``ids`` it decides all randomness.
        ids: (N,) permanent sample ids; the positions in ``x`` if not given.
        args: arguments of the attack, such as ``steps``.
    """
    instance = create_attack(name, **args)
    return run_attack(
        instance, model, x, y, Threat.parse(threat), ids=ids, options=AttackOptions(seed)
    ).x_adv


MIN_PASSES_FOR_PROCESSES = 15_000  # passes: shorter attacks are not worth more processes
MAX_CHUNK_BYTES = 1 << 25  # bytes of images attacked at once: 2,700 of CIFAR-10, 55 of ImageNet


def run_attack(
    attack: Attack,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    *,
    ids: Tensor | None = None,
    options: AttackOptions | None = None,
) -> AttackResult:
    """Like `attack`, with the verdicts, losses and passes beside the examples."""
    options = options or AttackOptions()
    check_image_batch(x)
    check_label_batch(x, y)
    check_attack_norm(attack, threat)
    x, ids, y = x.detach(), check_sample_ids(x, ids), y.long()
    name = attack_name(attack)
    results = []
    disable_malloc_trim()
    with eval_mode(model):
        for chunk in chunk_slices(x, options.batch_size):
            xb, yb = to_model_device(model, x[chunk]), y[chunk].to(model_device(model))
            streams = SampleRNG(options.seed, name, ids[chunk])
            problem = Problem(model, xb, yb, threat, streams)
            first_logits = check_model_output(model, xb[:1], yb)
            on_progress = scale_progress(
                options.on_progress, chunk.start / len(x), len(xb) / len(x)
            )
            sized = dataclasses.replace(problem, clean_logits=first_logits)
            check_differentiable(attack, sized)
            is_long = (
                len(xb) * surviving_sample_cost(attack, sized) >= MIN_PASSES_FOR_PROCESSES
                and attack.eot_samples == 1
            )
            num_workers = options.workers or (
                default_num_workers(len(xb), xb.device) if is_long else 1
            )
            chunk_options = dataclasses.replace(
                options, on_progress=on_progress, workers=num_workers
            )
            result = run_ensemble(attack, problem, chunk_options)
            check_adversarial_examples(name, problem, result.x_adv)
            names = _names(attack.stages(sized))
            results.append(dataclasses.replace(result, x_adv=result.x_adv.to(x), stage_names=names))
    return concat_results(results, x)


def _names(parts: Sequence[Attack]) -> tuple[str, ...]:
    return tuple(attack_name(part) for part in parts) if len(parts) > 1 else ()


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
    meters = [p.counter for p in results]
    names = [f.name for f in dataclasses.fields(PassCounter)]
    meter = PassCounter(*(torch.cat([getattr(m, name) for m in meters]) for name in names))
    return AttackResult(
        torch.cat([p.x_adv for p in results]),
        torch.cat([p.fooled for p in results]),
        torch.cat([p.margin for p in results]),
        meter,
        results[0].stage_names,
    )


def check_image_batch(x: Tensor) -> None:
    """Refuses what is not a batch of images in [0, 1]."""
    if not is_dense(x) or x.ndim != 4 or not x.is_floating_point():
        raise UserError(f"images must be a float tensor (N, C, H, W), but got {describe_tensor(x)}")
    if len(x) == 0:
        return
    if x.numel() == 0:
        raise UserError(f"images must have pixels, but got {describe_tensor(x)}")
    low, high = x.min().item(), x.max().item()
    if not (low >= 0 and high <= 1):
        raise UserError(
            f"images must be in [0, 1], but they span [{low:.3g}, {high:.3g}]; divide by 255, and "
            "put mean and std normalisation into the model (its first layer)"
        )


def check_label_batch(x: Tensor, y: Tensor) -> None:
    if not is_dense(y) or y.shape != x.shape[:1] or y.dtype not in INTEGER_DTYPES:
        raise UserError(
            f"labels must be integers of shape ({len(x)},), but got {describe_tensor(y)}"
        )


def check_sample_ids(x: Tensor, ids: Tensor | None) -> Tensor:
    """The sample ids; the positions if there are none."""
    if ids is None:
        return torch.arange(len(x))
    if not is_dense(ids) or ids.shape != x.shape[:1] or ids.dtype not in INTEGER_DTYPES:
        raise UserError(
            f"`ids` must have one whole number per image, {len(x)}, but got {describe_tensor(ids)}"
        )
    return ids.long()


INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def is_dense(values: object) -> bool:
    """Whether it is a tensor with its numbers in place: not sparse, not without storage."""
    return (
        isinstance(values, Tensor)
        and values.layout is torch.strided
        and not values.is_meta
        and not values.is_quantized
    )


def describe_tensor(values: object) -> str:
    if not isinstance(values, Tensor):
        return type(values).__name__
    form = "" if is_dense(values) else " without plain numbers"
    return f"{values.dtype} {tuple(values.shape)}{form}"


def check_model_output(
    model: nn.Module, x: Tensor, y: Tensor, num_classes: int | None = None
) -> Tensor:
    """Refuses a model whose output cannot be class scores for these labels; returns them."""
    try:
        with torch.no_grad():
            out = model(x)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"the model cannot take images of shape {tuple(x.shape[1:])}: {reason}"
        ) from error
    if not isinstance(out, Tensor) or out.ndim != 2:
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise UserError(f"the model must return logits (N, classes), but returned {got}")
    max_label = int(y.max()) if len(y) else -1
    if num_classes is not None and out.shape[1] != num_classes:
        raise UserError(f"the data has {num_classes} classes, but the model returns {out.shape[1]}")
    if out.shape[1] < 2:
        raise UserError("the model must tell at least two classes apart, but returns one")
    if len(y) and int(y.min()) < 0:
        raise UserError(f"labels must be class numbers from 0 on, but there is {int(y.min())}")
    if max_label >= out.shape[1]:
        raise UserError(
            f"there is a label {max_label}, but the model returns {out.shape[1]} classes"
        )
    return out


def check_differentiable(attack: Attack, problem: Problem) -> None:
    """Refuses an attack that needs gradients where the model gives none."""
    gradient_attacks = [attack_name(part) for part in attack.stages(problem) if part.needs_grad]
    if gradient_attacks and not is_differentiable(problem.model):
        black_box = [e.name for e in ATTACKS if not e.value.needs_grad]
        raise UserError(
            f"attack {gradient_attacks[0]} needs gradients, which this model does not give; the "
            f"black-box attacks are {', '.join(black_box)}"
        )


def check_adversarial_examples(name: str, problem: Problem, x_adv: Tensor) -> None:
    """Every result of every attack passes here: right shape, finite, in the box, in the ball."""
    if x_adv.shape != problem.x.shape:
        raise RunError(f"attack {name} changed the shape to {tuple(x_adv.shape)}; this is a bug")
    if not len(x_adv):
        return
    low, high = torch.aminmax(x_adv)
    if not (low >= 0 and high <= 1):
        if not x_adv.isfinite().all():
            raise RunError(f"attack {name} returned values that are not finite; this is a bug")
        raise RunError(f"attack {name} left the box [0, 1]; this is a bug")
    if (excess := problem.threat.excess(problem.x, x_adv)).any():
        raise RunError(
            f"attack {name} left the ball {problem.threat} by {excess.max():.3g}; this is a bug"
        )
