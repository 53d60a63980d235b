"""The public way to attack: checks what goes in, guards the model, verifies what comes out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from buttress.attacks.core import ATTACKS, Attack, attack_name, check_attack_norm, create_attack
from buttress.attacks.losses import margin
from buttress.attacks.problem import PassCounter, Problem
from buttress.engine.batching import (
    AttackResult,
    OnProgress,
    Ways,
    is_misclassified,
    run_ensemble,
    search,
    surviving_sample_cost,
)
from buttress.engine.fast_model import FastModel
from buttress.engine.processes import (
    ProcessTask,
    default_num_workers,
    partition_runs,
    run_in_processes,
)
from buttress.errors import RunError, UserError
from buttress.models.eval_mode import eval_mode, is_differentiable, model_device, to_model_device
from buttress.system.cpu import disable_malloc_trim
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


@dataclasses.dataclass(frozen=True)
class AttackOptions:
    """How an attack is run; but for the seed, it changes no verdict."""

    seed: int = 0
    batch_size: int = 256
    stop_when_fooled: bool = False
    on_progress: OnProgress | None = None
    fast_model: FastModel | None = None  # of this very model: where to search
    workers: int | None = None  # processes; None: one per thread where that is faster


HOW = AttackOptions()


def run_attack(
    attack: Attack,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    *,
    ids: Tensor | None = None,
    options: AttackOptions = HOW,
) -> AttackResult:
    """Like `attack`, with the verdicts, losses and passes beside the examples."""
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
            on_progress = _within(options.on_progress, chunk, len(x))
            sized = dataclasses.replace(problem, clean_logits=first_logits)
            check_differentiable(attack, sized)
            is_long = (
                len(xb) * surviving_sample_cost(attack, sized) >= MIN_PASSES_FOR_PROCESSES
                and attack.eot_samples == 1
            )
            num_workers = options.workers or (
                default_num_workers(len(xb), xb.device) if is_long else 1
            )
            result = _spread(
                attack,
                problem,
                dataclasses.replace(options, on_progress=on_progress, workers=num_workers),
            )
            check_adversarial_examples(name, problem, result.x_adv)
            names = _names(attack.stages(sized))
            results.append(dataclasses.replace(result, x_adv=result.x_adv.to(x), stage_names=names))
    return concat_results(results, x)


def _names(parts: Sequence[Attack]) -> tuple[str, ...]:
    return tuple(attack_name(part) for part in parts) if len(parts) > 1 else ()


def _spread(chosen: Attack, problem: Problem, how: AttackOptions) -> AttackResult:
    """Each attack in one process or in several, to which the runs of what is left are dealt out."""
    count = how.workers or 1

    def search(attack: Attack, problem: Problem, so_far: AttackResult, ways: Ways) -> AttackResult:
        fast_model, saturating_batch = (
            how.fast_model,
            1,
        )  # rows with which one process is: small networks need many
        if fast_model is not None:
            if attack.has_forward_only_passes:
                fast_model.optimize_forward()
            if fast_model.saturating_batch is not None:
                problem, saturating_batch = (
                    dataclasses.replace(problem, saturating_batch=fast_model.saturating_batch),
                    fast_model.saturating_batch,
                )
        masks = partition_runs(_asked(attack, problem), count) if count > 1 else []
        if len(masks) < 2:
            return search_and_confirm(attack, problem, so_far, ways, fast_model)
        worker_batch = max(1, ways.batch_size // len(masks), min(saturating_batch, ways.batch_size))
        images = [share.any(1).nonzero()[:, 0] for share in masks]

        def make_task(run_mask: Tensor, rows: Tensor) -> ProcessTask[AttackResult]:
            worker_problem = dataclasses.replace(problem, run_mask=run_mask).select(rows)
            worker_start = so_far.restart_rows(rows)

            def work(on_progress: OnProgress) -> AttackResult:
                worker_options = dataclasses.replace(
                    ways, batch_size=worker_batch, on_step=on_progress
                )
                return search_and_confirm(
                    attack, worker_problem, worker_start, worker_options, fast_model
                )

            return work

        tasks = [make_task(*share) for share in zip(masks, images, strict=True)]
        for rows, worker_result in zip(images, run_in_processes(tasks, ways.on_step), strict=True):
            so_far.keep_better(rows, worker_result)
        return so_far

    return run_ensemble(
        chosen,
        problem,
        batch_size=how.batch_size,
        stop_when_broken=how.stop_when_fooled,
        on_step=how.on_progress,
        search=search,
    )


def _asked(attack: Attack, problem: Problem) -> Tensor:
    """(N, runs) the runs that are asked for."""
    if problem.run_mask is not None:
        return problem.run_mask
    runs = attack.num_runs(problem)
    return torch.ones(len(problem.x), runs, dtype=torch.bool, device=problem.x.device)


def search_and_confirm(
    attack: Attack,
    problem: Problem,
    start: AttackResult,
    options: Ways,
    fast_model: FastModel | None,
) -> AttackResult:
    """Searches in the inference-optimized model, if any, and confirms in the model itself.

    A sample counts as fooled only if the model itself misclassifies the point; where it does not,
    the sample is searched again in the model itself.
    """

    def search_with(model: nn.Module, rows: Tensor) -> AttackResult:
        model_problem = dataclasses.replace(problem, model=model)
        return search(attack, model_problem.select(rows), start.restart_rows(rows), options)

    all_rows = problem.row_numbers()
    if fast_model is None or attack.eot_samples > 1:
        return search_with(problem.model, all_rows)
    result = search_with(fast_model.module, all_rows)
    unconfirmed = reject_unconfirmed(problem, result, options.batch_size)
    if unconfirmed.any():
        result.replace_rows(unconfirmed, search_with(problem.model, unconfirmed))
    return result


def reject_unconfirmed(problem: Problem, result: AttackResult, batch_size: int) -> Tensor:
    """(N,) successes that the model itself denies; they count no more."""
    unconfirmed = torch.zeros_like(result.fooled)
    if not result.fooled.any():
        return unconfirmed  # some networks cannot pass an empty batch
    for rows in result.fooled.nonzero()[:, 0].split(batch_size):
        with torch.no_grad():
            logits = problem.model(result.x_adv[rows])
        result.counter.forward[rows] += 1
        unconfirmed[rows] = ~is_misclassified(logits, problem.y[rows])
        result.margin[rows] = margin(logits, problem.y[rows])
    result.fooled &= ~unconfirmed
    return unconfirmed


def chunk_slices(x: Tensor, batch_size: int) -> list[slice]:
    """Cuts images into pieces that bound the memory of an attack, whatever their number."""
    length = chunk_size(x.shape[1:], batch_size)
    return [slice(i, min(i + length, len(x))) for i in range(0, len(x), length)]


def chunk_size(shape: Sequence[int], batch_size: int) -> int:
    """How many images of a shape are attacked at once."""
    return max(batch_size, MAX_CHUNK_BYTES // (4 * max(1, math.prod(shape))))


def _within(on_step: OnProgress | None, piece: slice, n: int) -> OnProgress | None:
    """Progress of one piece as progress of the whole."""
    if on_step is None:
        return None
    return lambda share: on_step((piece.start + share * (piece.stop - piece.start)) / n)


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
