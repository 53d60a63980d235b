"""The stages of an ensemble: which samples and targets each attacks, and in how many processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from buttress.attacks.core import Attack, EnsembleState, attack_name
from buttress.attacks.losses import is_misclassified, label_logit, margin, margin_if_finite
from buttress.attacks.problem import PassCounter, Problem
from buttress.attacks.targets import rank_targets, sort_other_classes
from buttress.engine.confirm import search_and_confirm
from buttress.engine.cost import stage_eot_samples, stage_passes
from buttress.engine.options import AttackOptions
from buttress.engine.processes import ProcessTask, partition_runs, run_in_processes
from buttress.engine.result import AttackResult
from buttress.system.progress import OnProgress, scale_progress


def run_ensemble(attack: Attack, problem: Problem, options: AttackOptions) -> AttackResult:
    """Runs an attack and returns each sample's best point.

    A misclassified point is better than any other; among equals the larger margin
    max_{k != y} z_k - z_y is better, which means the same for every loss, target and step. With
    ``stop_when_fooled`` a sample leaves at its first misclassified point. Each stage of an ensemble
    attacks only the samples that the stages before it did not fool.
    """
    counter = PassCounter.zeros(len(problem.x), problem.x.device)
    problem = replace(
        problem,
        counter=counter,
        sample_rows=problem.row_numbers(),
        run_mask=None,
        run_attack=_run_to_points,
        eot_samples=attack.eot_samples,
    )
    clean, is_wrong = _clean_logits(problem, options.batch_size)
    problem, clean_margin = replace(problem, clean_logits=clean), margin(clean, problem.y)
    best_margin = margin_if_finite(clean, problem.y)
    points = None if problem.parametric is None else problem.x.clone()
    result = AttackResult(problem.clean_images.clone(), is_wrong, best_margin, counter, points)
    stages = attack.stages(problem.threat, problem.num_classes)
    result.stage_names = tuple(attack_name(s) for s in stages) if len(stages) > 1 else ()
    drop_fooled = options.stop_when_fooled or len(stages) > 1
    costs = _stage_costs(attack, stages, problem)
    class_margins = clean - label_logit(clean, problem.y)[:, None]  # the best of each other class
    class_margins.scatter_(1, problem.y[:, None], -torch.inf)
    margin_before_stage = result.margin.clone()
    for stage, stage_attack in enumerate(stages):
        rows = problem.row_numbers()[~result.fooled] if drop_fooled else problem.row_numbers()
        is_improved = result.margin > margin_before_stage
        rows = _select_samples(attack, stage, rows, problem, result, is_improved)
        margin_before_stage = result.margin.clone()
        ranks = stage_attack.target_ranks(problem.num_classes)
        on_progress = scale_progress(
            options.on_progress, sum(costs[:stage]) / sum(costs), costs[stage] / sum(costs)
        )
        if len(rows):
            max_ratio = attack.target_threshold(stage, problem.space)
            run_mask = _promising_runs(ranks, class_margins, clean_margin, max_ratio)
            eot_samples = stage_eot_samples(attack, stage_attack)
            stage_problem = replace(problem, run_mask=run_mask, eot_samples=eot_samples)
            if len(stages) > 1:
                purpose = f"{problem.rng.purpose}/{stage}"
                stage_problem = replace(stage_problem, rng=replace(problem.rng, purpose=purpose))
            result.run_margins = None
            stage_options = replace(options, stop_when_fooled=drop_fooled, on_progress=on_progress)
            stage_problem, masks = _plan_stage(stage_attack, stage_problem.select(rows), options)
            run = partial(_run_parallel, masks=masks) if len(masks) > 1 else search_and_confirm
            start = result.restart_rows(rows)
            stage_result = run(stage_attack, stage_problem, start, stage_options)
            result.replace_rows(rows, stage_result)
            if attack.reorders_targets and ranks is not None:
                order = update_target_order(problem, class_margins, rows, stage_result, ranks)
                problem = replace(problem, target_order=order)
        if on_progress is not None:
            on_progress(1.0)
    counter.zero_gradient &= counter.backward > 0  # where there was no gradient, none was zero
    return result


def _stage_costs(attack: Attack, stages: Sequence[Attack], problem: Problem) -> list[float]:
    """Cost of each stage of an attack per sample, to weight its progress."""
    return [
        stage_passes(s, problem.threat, problem.num_classes).macs() * stage_eot_samples(attack, s)
        for s in stages
    ]


def _select_samples(
    attack: Attack,
    stage: int,
    rows: Tensor,
    problem: Problem,
    result: AttackResult,
    is_improved: Tensor,
) -> Tensor:
    """The samples of ``rows`` that a stage attacks; the counter notes them and the skipped ones."""
    assert problem.clean_logits is not None
    counter, clean_margin = result.counter, margin(problem.clean_logits, problem.y)
    has_unusable_gradient = counter.zero_gradient | counter.non_finite
    columns = (result.margin, clean_margin, has_unusable_gradient, is_improved)
    state = EnsembleState(problem.space, *(column[rows] for column in columns))
    if (is_selected := attack.select_samples(stage, state)) is not None:
        counter.stages_skipped[rows[~is_selected]] |= 1 << stage
        rows = rows[is_selected]
    counter.stages_run[rows] |= 1 << stage
    return rows


def _promising_runs(
    ranks: Tensor | None, class_margins: Tensor, clean_margin: Tensor, max_ratio: float
) -> Tensor | None:
    """(N, runs) runs whose target kept at most ``max_ratio`` of the clean margin; None: all.

    The nearest class is always among them.
    """
    if ranks is None or math.isinf(max_ratio):
        return None
    margin_ratios = class_margins / clean_margin.clamp_max(-1e-12)[:, None]
    num_promising = (margin_ratios <= max_ratio).sum(1, keepdim=True)
    return ranks.to(num_promising) < num_promising.clamp_min(1)


def _plan_stage(
    attack: Attack, problem: Problem, options: AttackOptions
) -> tuple[Problem, list[Tensor]]:
    """The problem with the batch that saturates the model, and (N, runs) runs of each process."""
    fast_model, num_workers = options.fast_model, options.workers or 1
    if fast_model is not None:
        if attack.has_forward_only_passes:
            passes = stage_passes(attack, problem.threat, problem.num_classes)
            fast_model.optimize_forward(passes.forward - passes.backward)
        if fast_model.saturating_batch is not None:
            problem = replace(problem, saturating_batch=fast_model.saturating_batch)
    if num_workers < 2:
        return problem, []
    run_mask = problem.run_mask
    if run_mask is None:
        shape = len(problem.x), attack.num_runs(problem.num_classes)
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
    result = run_ensemble(attack, problem, AttackOptions())
    return result.x_adv if result.points is None else result.points


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


def _clean_logits(problem: Problem, batch_size: int) -> tuple[Tensor, Tensor]:
    """(N, K) logits of the images, and (N,) which are misclassified."""

    def zero_loss(logits: Tensor) -> Tensor:
        return logits.new_zeros(len(logits))

    problem = problem.on_images()
    outputs = [
        problem.select(rows).evaluate_at(problem.x[rows], zero_loss, grad=False)
        for rows in problem.row_numbers().split(batch_size)
    ]
    logits = torch.cat([output.logits for output in outputs])
    always_wrong = [o.always_misclassified for o in outputs if o.always_misclassified is not None]
    return logits, torch.cat(always_wrong) if always_wrong else is_misclassified(logits, problem.y)
