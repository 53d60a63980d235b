"""The stages of an ensemble: which samples and targets each attacks, and in how many processes."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from buttress.attacks.core import Attack, EnsembleState
from buttress.attacks.losses import label_logit, margin
from buttress.attacks.problem import PassCounter, Problem
from buttress.attacks.targets import rank_targets, sort_other_classes
from buttress.engine.confirm import search_and_confirm
from buttress.engine.cost import stage_cost
from buttress.engine.options import AttackOptions
from buttress.engine.processes import ProcessTask, partition_runs, run_in_processes
from buttress.engine.result import AttackResult, comparable_margin, is_misclassified
from buttress.system.progress import OnProgress, scale_progress


def run_ensemble(attack: Attack, problem: Problem, options: AttackOptions) -> AttackResult:
    """Runs an attack and returns each sample's best point.

    A misclassified point is better than any other; among equals the larger margin
    max_{k != y} z_k - z_y is better, which means the same for every loss, target and step. With
    ``stop_when_fooled`` a sample leaves at its first misclassified point. The parts of an ensemble
    see only what the parts before them left.
    """
    meter = PassCounter.zeros(len(problem.x), problem.x.device)
    all_rows = torch.arange(len(problem.x), device=problem.x.device)
    problem = replace(
        problem, counter=meter, sample_rows=all_rows, run_mask=None, run_attack=_run_to_points
    )
    clean = _clean_logits(problem, options.batch_size, attack.eot_samples)
    problem, clean_margin = replace(problem, clean_logits=clean), margin(clean, problem.y)
    result = AttackResult(
        problem.x.clone(),
        is_misclassified(clean, problem.y),
        comparable_margin(clean_margin),
        meter,
    )
    stages = attack.stages(problem)
    drop_fooled = options.stop_when_fooled or len(stages) > 1
    costs = [stage_cost(stage_attack, problem) for stage_attack in stages]
    class_margins = clean - label_logit(clean, problem.y)[:, None]  # how near each other class came
    class_margins.scatter_(1, problem.y[:, None], -torch.inf)
    for stage, stage_attack in enumerate(stages):
        stage_problem = problem if len(stages) == 1 else _renamed(problem, f"/{stage}")
        rows = all_rows[~result.fooled] if drop_fooled else all_rows
        is_blind = meter.zero_gradient[rows] | meter.non_finite[rows]
        state = EnsembleState(
            problem.threat.norm, result.margin[rows], clean_margin[rows], is_blind
        )
        if (is_selected := attack.select_samples(stage, state)) is not None:
            meter.stages_skipped[rows[~is_selected]] |= 1 << stage
            rows = rows[is_selected]
        meter.stages_run[rows] |= 1 << stage
        target_ranks, max_ratio = (
            stage_attack.target_ranks(problem),
            attack.target_threshold(stage, problem.threat.norm),
        )
        if target_ranks is not None and not math.isinf(max_ratio):
            num_promising = (
                class_margins / clean_margin.clamp_max(-1e-12)[:, None] <= max_ratio
            ).sum(1, keepdim=True)
            stage_problem = replace(
                stage_problem, run_mask=target_ranks.to(num_promising) < num_promising.clamp_min(1)
            )
        on_progress = scale_progress(
            options.on_progress, sum(costs[:stage]) / sum(costs), costs[stage] / sum(costs)
        )
        if len(rows):
            stage_options = replace(options, stop_when_fooled=drop_fooled, on_progress=on_progress)
            result.run_margins = None
            start = result.restart_rows(rows)
            stage_problem, masks = _plan_stage(stage_attack, stage_problem.select(rows), options)
            if len(masks) < 2:
                stage_result = search_and_confirm(stage_attack, stage_problem, start, stage_options)
            else:
                stage_result = _run_parallel(
                    stage_attack, stage_problem, start, stage_options, masks
                )
            result.replace_rows(rows, stage_result)
            if attack.reorders_targets and target_ranks is not None:
                problem = replace(
                    problem,
                    target_order=update_target_order(
                        problem, class_margins, rows, stage_result, target_ranks
                    ),
                )
        if on_progress is not None:
            on_progress(1.0)
    meter.zero_gradient &= meter.backward > 0  # where there was no gradient at all, none was zero
    return result


def _plan_stage(
    attack: Attack, problem: Problem, options: AttackOptions
) -> tuple[Problem, list[Tensor]]:
    """The problem with the batch that saturates the model, and (N, runs) runs of each process."""
    fast_model, num_workers = options.fast_model, options.workers or 1
    if fast_model is not None:
        if attack.has_forward_only_passes:
            fast_model.optimize_forward()
        if fast_model.saturating_batch is not None:
            problem = replace(problem, saturating_batch=fast_model.saturating_batch)
    if num_workers < 2:
        return problem, []
    run_mask = problem.run_mask
    if run_mask is None:
        shape = len(problem.x), attack.num_runs(problem)
        run_mask = torch.ones(shape, dtype=torch.bool, device=problem.x.device)
    return problem, partition_runs(run_mask, num_workers)


def _run_parallel(
    attack: Attack,
    problem: Problem,
    start: AttackResult,
    options: AttackOptions,
    masks: list[Tensor],
) -> AttackResult:
    """One process for each mask of runs; what they find is merged in their order."""
    fast_model = options.fast_model
    saturating = 1 if fast_model is None else fast_model.saturating_batch or 1
    batch_size = max(1, options.batch_size // len(masks), min(saturating, options.batch_size))
    rows_of = [mask.any(1).nonzero()[:, 0] for mask in masks]

    def make_task(run_mask: Tensor, rows: Tensor) -> ProcessTask[AttackResult]:
        worker_problem = replace(problem, run_mask=run_mask).select(rows)
        worker_start = start.restart_rows(rows)

        def task(on_progress: OnProgress) -> AttackResult:
            worker_options = replace(options, batch_size=batch_size, on_progress=on_progress)
            return search_and_confirm(attack, worker_problem, worker_start, worker_options)

        return task

    tasks = [make_task(mask, rows) for mask, rows in zip(masks, rows_of, strict=True)]
    worker_results = run_in_processes(tasks, options.on_progress)
    for rows, worker_result in zip(rows_of, worker_results, strict=True):
        start.keep_better(rows, worker_result)
    return start


def _run_to_points(attack: Attack, problem: Problem) -> Tensor:
    """The points of an attack inside of another one, such as on the source of a transfer."""
    return run_ensemble(attack, problem, AttackOptions()).x_adv


def update_target_order(
    problem: Problem, class_margins: Tensor, rows: Tensor, stage_result: AttackResult, ranks: Tensor
) -> Tensor:
    """The other classes by the margins that runs reached; ``class_margins`` is updated."""
    assert stage_result.run_margins is not None
    targets = rank_targets(problem)[rows][:, ranks.to(rows.device)]  # (R, runs)
    updated_margins = class_margins[rows].scatter_reduce(
        1, targets, stage_result.run_margins, "amax"
    )
    class_margins[rows] = updated_margins
    return sort_other_classes(class_margins, problem.y)


def _clean_logits(problem: Problem, batch_size: int, eot_samples: int) -> Tensor:
    def zero_loss(logits: Tensor) -> Tensor:
        return logits.new_zeros(len(logits))

    pieces = [
        problem.select(rows)
        .evaluate_at(problem.x[rows], zero_loss, grad=False, eot_samples=eot_samples)
        .logits
        for rows in problem.row_numbers().split(batch_size)
    ]
    return torch.cat(pieces)


def _renamed(problem: Problem, suffix: str) -> Problem:
    """The same problem with random streams of its own."""
    streams = replace(problem.rng, purpose=problem.rng.purpose + suffix)
    return replace(problem, rng=streams)
