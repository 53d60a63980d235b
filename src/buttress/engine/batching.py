"""The loop that every attack shares: continuous batches, the best point, the passes.

A queue holds the runs of all samples (restarts, targets). A batch takes as many as it has room
for; a run that is over, or whose sample is broken, leaves at once and the next ones take its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from buttress.attacks.core import Attack, AttackState, EnsembleState, any_or_accelerator, copy_rows_
from buttress.attacks.losses import label_logit, margin
from buttress.attacks.problem import ModelOutput, PassCounter, Problem
from buttress.attacks.targets import rank_targets, sort_other_classes

REFILL_FRACTION = (
    1 / 8
)  # of the batch must be free before new runs are taken in: each intake has its price
BATCH_SLACK = 1.25  # of the batch size: a few rows more are better than a second, small batch
DEVICE_SYNC_INTERVAL = (
    4  # steps between two looks at who is broken, on a device that is slow to ask
)


@dataclass
class AttackResult:
    """The result of an attack on a batch."""

    x_adv: Tensor  # (N, C, H, W): the best point found, the clean image if none is better
    fooled: Tensor  # (N,) bool: x_adv is misclassified
    margin: Tensor  # (N,) max_{k != y} z_k - z_y at x_adv
    counter: PassCounter
    stage_names: tuple[str, ...] = ()  # of the parts, for an ensemble
    run_margins: Tensor | None = (
        None  # (N, runs) the largest margin of each run, if they have targets
    )

    def replace_rows(self, rows: Tensor, other: AttackResult) -> None:
        """Takes over the results of a second search on some rows, and adds its cost."""
        self.x_adv[rows], self.fooled[rows] = other.x_adv, other.fooled
        self.margin[rows] = other.margin
        self._add_cost(rows, other)

    def keep_better(self, rows: Tensor, other: AttackResult) -> None:
        """Takes over what other runs of some rows found, where that is better, and adds their cost.

        A broken point is better than any other, else the larger margin counts.
        """
        same_success = other.fooled == self.fooled[rows]
        larger = other.margin > self.margin[rows]
        is_better = larger.where(same_success, other.fooled)
        better_rows = rows[is_better]
        self.x_adv[better_rows], self.fooled[better_rows] = (
            other.x_adv[is_better],
            other.fooled[is_better],
        )
        self.margin[better_rows] = other.margin[is_better]
        self._add_cost(rows, other)

    def _add_cost(self, rows: Tensor, other: AttackResult) -> None:
        self.counter.add_rows(rows, other.counter)
        if other.run_margins is not None:
            if self.run_margins is None:
                shape = len(self.margin), other.run_margins.shape[1]
                self.run_margins = other.run_margins.new_full(shape, -torch.inf)
            self.run_margins[rows] = self.run_margins[rows].maximum(other.run_margins)

    def restart_rows(self, rows: Tensor) -> AttackResult:
        """Where some rows stand, with nothing spent yet: for a search that goes on from there."""
        meter = PassCounter.zeros(len(self.fooled[rows]), self.fooled.device)
        return AttackResult(self.x_adv[rows], self.fooled[rows], self.margin[rows], meter)


OnProgress = Callable[[float], None]  # called with the share of the work that is done


@dataclass(frozen=True)
class Ways:
    """How runs are worked off."""

    batch_size: int = 256
    drop: bool = False  # samples leave when they are broken
    on_step: OnProgress | None = None


class Search(Protocol):
    """One attack on a problem, from where its samples stand."""

    def __call__(
        self, attack: Attack, problem: Problem, so_far: AttackResult, ways: Ways
    ) -> AttackResult: ...


def search(attack: Attack, problem: Problem, so_far: AttackResult, ways: Ways) -> AttackResult:
    """All runs of an attack; what they find and cost is put into ``so_far``."""
    problem = replace(problem, counter=so_far.counter, sample_rows=problem.row_numbers())
    queue = AttackRunQueue(
        problem.row_numbers(), attack.num_runs(problem), problem.saturating_batch, problem.run_mask
    )
    if attack.target_ranks(problem) is not None:
        so_far.run_margins = so_far.margin.new_full((len(so_far.margin), queue.runs), -torch.inf)
    best = BestPoints(so_far.x_adv, so_far.margin, so_far.fooled, so_far.run_margins)
    told = None if ways.on_step is None else _told(ways.on_step, len(queue))
    run_queue(attack, problem, queue, best, ways, told)
    return so_far


def run_ensemble(
    attack: Attack,
    problem: Problem,
    *,
    batch_size: int = 256,
    stop_when_broken: bool = False,
    on_step: OnProgress | None = None,
    search: Search = search,
) -> AttackResult:
    """Runs an attack and returns each sample's best point.

    A misclassified point is better than any other; among equals the larger margin
    max_{k != y} z_k - z_y is better, which means the same for every loss, target and step. With
    ``stop_when_broken`` a sample leaves at its first misclassified point. The parts of an ensemble
    see only what the parts before them left.
    """
    meter = PassCounter.zeros(len(problem.x), problem.x.device)
    all_rows = torch.arange(len(problem.x), device=problem.x.device)
    problem = replace(
        problem, counter=meter, sample_rows=all_rows, run_mask=None, run_attack=_run_to_points
    )
    clean = _clean_logits(problem, batch_size, attack.eot_samples)
    problem, clean_margin = replace(problem, clean_logits=clean), margin(clean, problem.y)
    result = AttackResult(
        problem.x.clone(),
        is_misclassified(clean, problem.y),
        comparable_margin(clean_margin),
        meter,
    )
    stages = attack.stages(problem)
    drop_fooled = stop_when_broken or len(stages) > 1
    costs = [_cost(stage_attack, problem) for stage_attack in stages]
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
        on_progress = _within(on_step, sum(costs[:stage]) / sum(costs), costs[stage] / sum(costs))
        if len(rows):
            stage_options = Ways(batch_size, drop_fooled, on_progress)
            result.run_margins = None
            stage_result = search(
                stage_attack, stage_problem.select(rows), result.restart_rows(rows), stage_options
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


def _run_to_points(attack: Attack, problem: Problem) -> Tensor:
    """The points of an attack inside of another one, such as on the source of a transfer."""
    return run_ensemble(attack, problem).x_adv


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


def _within(on_step: OnProgress | None, before: float, share: float) -> OnProgress | None:
    """Progress of one part as progress of the whole."""
    return None if on_step is None else lambda done: on_step(before + share * done)


HoldRule = (
    Callable[[ModelOutput], Tensor | None] | None
)  # (N,) samples that do not move on; None: all do


def last_iterate(attack: Attack, problem: Problem, hold: HoldRule = None) -> Tensor:
    """The last point of one run, as adversarial training uses it, for ``length`` passes."""
    state = attack.init_state(problem, torch.zeros_like(problem.y))
    for _ in range(attack.max_steps):
        output = attack.evaluate(problem, state)
        is_held, x_prev = None if hold is None else hold(output), state.x_t
        x_next = attack.next_points(problem, state, output)
        if is_held is not None:
            copy_rows_(x_next, is_held, x_prev)
        state.x_t = x_next
        state.step += 1
    return state.x_t


@dataclass
class AttackRunQueue:
    """Runs that wait: all samples in their first run, then all in their second ..."""

    samples: Tensor
    runs: int
    saturating_batch: int = 128  # rows with which a processor is busy
    run_mask: Tensor | None = None  # (N, runs) which of them are wanted; None: all
    num_taken: int = 0

    def __len__(self) -> int:
        return len(self.samples) * self.runs - self.num_taken

    def take(
        self, max_runs: int, is_done: Tensor | None, active_samples: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Up to ``max_runs`` samples and the numbers of their runs.

        Samples of the mask ``is_done`` need no more runs. On a processor, which gains little from
        more than ``saturating_batch`` rows, a sample of ``active_samples``, still in one run, then
        waits with the next: it may break.
        """
        n, may_wait = len(self.samples), self.samples.device.type == "cpu"
        samples, run_indices = [self.samples[:0]], [self.samples[:0]]
        while max_runs > 0 and len(self):
            run_index, position = divmod(self.num_taken, n)
            candidates = self.samples[position : position + max_runs]
            must_wait = torch.isin(candidates, active_samples) & self._is_requested(
                candidates, run_index
            )
            if may_wait and bool(must_wait.any()):
                num_free, num_missing = (
                    int(must_wait.int().argmax()),
                    self.saturating_batch - len(active_samples),
                )
                if len(candidates) > max(num_free, num_missing):
                    candidates = candidates[: max(num_free, num_missing)]
                    max_runs = len(candidates)
            self.num_taken += len(candidates)
            if is_done is not None:
                candidates = candidates[~is_done[candidates]]
            candidates = candidates[self._is_requested(candidates, run_index)]
            samples.append(candidates)
            run_indices.append(torch.full_like(candidates, run_index))
            active_samples = torch.cat([active_samples, candidates])
            max_runs -= len(candidates)
        return torch.cat(samples), torch.cat(run_indices)

    def _is_requested(self, samples: Tensor, run_index: int) -> Tensor:
        """(N,) of which samples this run is asked for."""
        if self.run_mask is None:
            return torch.ones_like(samples, dtype=torch.bool)
        return self.run_mask[samples, run_index]


def run_queue(
    attack: Attack,
    problem: Problem,
    queue: AttackRunQueue,
    best: BestPoints,
    options: Ways,
    on_progress: OnProgress | None,
) -> None:
    """Works off the queue, and keeps what is found in ``best``."""
    is_cpu = problem.x.device.type == "cpu"
    rows, batch_problem, state = problem.row_numbers(0), problem, None
    run_indices = rows.clone()
    is_active, iteration = torch.ones_like(rows, dtype=torch.bool), 0
    batch = balanced_batch_size(len(queue), options.batch_size, BATCH_SLACK if is_cpu else 1.0)
    while True:
        num_free = batch - len(rows)
        if len(queue) and num_free >= max(1, REFILL_FRACTION * batch):
            new_rows, new_runs = queue.take(num_free, best.fooled if options.drop else None, rows)
            if len(new_rows):  # none if all that wait are still busy in another run
                new_problem = problem.select(new_rows)
                new_state = attack.init_state(new_problem, new_runs)
                if state is None or not len(rows):
                    rows, batch_problem, state = new_rows, new_problem, new_state
                else:
                    rows, state = torch.cat([rows, new_rows]), state.concat(new_state)
                    batch_problem = problem.select(rows)
                run_indices = torch.cat([run_indices, new_runs])
                is_active = torch.cat([is_active, torch.ones_like(new_rows, dtype=torch.bool)])
        if state is None or not len(rows):
            return
        output = attack.evaluate(batch_problem, state)
        best.update(run_indices, is_active, attack, batch_problem, state, output.logits)
        if on_progress is not None and (is_cpu or iteration % DEVICE_SYNC_INTERVAL == 0):
            fraction_active = float(state.step.sum()) / max(1, attack.max_steps)
            on_progress(queue.num_taken - len(rows) + fraction_active)
        is_active &= state.step < attack.max_steps
        if (is_over := attack.finished_mask(state)) is not None:
            is_active &= ~is_over
        if options.drop:
            is_active &= ~best.fooled[rows]
        iteration += 1
        if (is_cpu or iteration % DEVICE_SYNC_INTERVAL == 0) and not is_active.all():
            rows, batch_problem, state = (
                rows[is_active],
                batch_problem.select(is_active),
                state.select(is_active),
            )
            run_indices = run_indices[is_active]
            grad = None if output.grad is None else output.grad[is_active]
            output, is_active = (
                ModelOutput(output.logits[is_active], output.loss[is_active], grad),
                is_active[is_active],
            )
        if len(rows):
            state.x_t = attack.next_points(batch_problem, state, output)
            state.step += 1


def balanced_batch_size(num_runs: int, batch_size: int, slack: float) -> int:
    """Rows of a batch such that the last batch is not much smaller than the others."""
    return -(-num_runs // max(1, math.ceil(num_runs / (slack * batch_size))))


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


def surviving_sample_cost(attack: Attack, problem: Problem) -> float:
    """Passes of an attack for a sample that survives it, a backward pass counted as two."""
    return sum(_cost(stage_attack, problem) for stage_attack in attack.stages(problem))


def _cost(attack: Attack, problem: Problem) -> float:
    """Passes of a part for a sample that survives it, a backward pass counted as two."""
    passes_per_step = 3 if attack.needs_grad else 1
    return float(
        attack.num_runs(problem) * (attack.max_steps + 1) * passes_per_step * attack.eot_samples
    )


def _told(on_step: OnProgress, runs: int) -> OnProgress:
    """Progress in runs as a share of them; it never goes back."""
    most = 0.0

    def told(done: float) -> None:
        nonlocal most
        most = max(most, min(1.0, done / max(1, runs)))
        on_step(most)

    return told


def _renamed(problem: Problem, suffix: str) -> Problem:
    """The same problem with random streams of its own."""
    streams = replace(problem.rng, purpose=problem.rng.purpose + suffix)
    return replace(problem, rng=streams)


@dataclass
class BestPoints:
    """Each sample's best point so far."""

    x: Tensor
    margin: Tensor
    fooled: Tensor
    run_margins: Tensor | None  # (N, runs) the largest margin of each run, if that is wanted

    def update(
        self,
        run_indices: Tensor,
        is_active: Tensor,
        attack: Attack,
        problem: Problem,
        state: AttackState,
        logits: Tensor,
    ) -> None:
        """Takes over the current points that are better, of the runs that are alive.

        ``run_indices`` has the number of each run; its sample is where the counter of
        ``problem`` has it.
        """
        rows = problem.counter_rows
        margins, index = comparable_margin(margin(logits, problem.y)), problem.counter_index
        if self.run_margins is not None:
            is_valid = attack.valid_mask(problem, state, torch.ones_like(is_active))
            active_margins = margins.where(
                is_active if is_valid is None else is_active & is_valid, -torch.inf
            )
            self.run_margins[rows, run_indices] = self.run_margins[rows, run_indices].maximum(
                active_margins
            )
        if not any_or_accelerator(is_better := is_active & (margins > self.margin[index])):
            return  # what is broken has a larger margin than all that is not
        fooled = is_misclassified(logits, problem.y)
        is_better &= fooled >= self.fooled[index]
        is_valid = attack.valid_mask(problem, state, fooled)
        if is_valid is not None:
            is_better = is_better & is_valid
        if isinstance(index, slice):
            copy_rows_(self.x[index], is_better, state.x_t)
            self.margin[index] = margins.where(is_better, self.margin[index])
            self.fooled[index] |= fooled & is_better  # what is better is broken if the old one was
            return
        if rows.device.type != "cpu" or len(rows[is_better].unique()) < int(is_better.sum()):
            # A sample may be in several runs at once.
            is_better &= best_row_per_sample(
                rows, margins.where(is_better, -torch.inf), fooled, len(self.fooled)
            )
        samples = rows[is_better]
        self.x[samples] = state.x_t[is_better]
        self.margin[samples] = margins[is_better]
        self.fooled[samples] = fooled[is_better]


def best_row_per_sample(rows: Tensor, margins: Tensor, fooled: Tensor, n: int) -> Tensor:
    """(N,) the best row of each sample: broken before not broken, then the largest gap."""
    positions = torch.arange(len(rows), device=rows.device)
    order = torch.argsort(margins, stable=True)
    order = order[torch.argsort(fooled[order].int(), stable=True)]
    rank = torch.empty_like(positions).scatter_(0, order, positions)
    top = rank.new_full((n,), -1).scatter_reduce_(0, rows, rank, "amax")
    return rank == top[rows]


def is_misclassified(logits: Tensor, y: Tensor) -> Tensor:
    """Which predictions are wrong; logits that are not finite are no evidence of a success."""
    return (logits.argmax(1) != y) & logits.isfinite().all(1)


def comparable_margin(margins: Tensor) -> Tensor:
    """Margins that can be compared: one that is not finite is never better."""
    return torch.nan_to_num(margins, nan=-torch.inf, posinf=-torch.inf)
