"""The loop that every attack shares: continuous batches, and the best point of each sample.

A queue holds the runs of all samples (restarts, targets). A batch takes as many as fit; a run that
is over, or whose sample is fooled, leaves at once and the next ones take its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from buttress.attacks.core import (
    Attack,
    AttackState,
    any_or_accelerator,
    broadcast_to_images,
    copy_rows_,
)
from buttress.attacks.losses import is_misclassified, margin_if_finite
from buttress.attacks.problem import ModelOutput, Problem
from buttress.engine.options import AttackOptions
from buttress.engine.result import AttackResult
from buttress.system.progress import scale_progress

REFILL_FRACTION = 1 / 8  # of the batch must be free before new runs begin: starting them costs
BATCH_SLACK = 1.25  # of the batch size: a few rows more are better than a second, small batch
DEVICE_SYNC_INTERVAL = 4  # steps between two checks of which samples are fooled, on an accelerator


def run_queue(
    attack: Attack, problem: Problem, result: AttackResult, options: AttackOptions
) -> AttackResult:
    """All runs of an attack; their best points and passes are written into ``result``."""
    problem = replace(problem, counter=result.counter, sample_rows=problem.row_numbers())
    num_runs = attack.num_runs(problem.num_classes)
    queue = AttackRunQueue(
        problem.row_numbers(), num_runs, problem.saturating_batch, problem.run_mask
    )
    if attack.target_ranks(problem.num_classes) is not None:
        result.run_margins = result.margin.new_full((len(result.margin), num_runs), -torch.inf)
    best = BestPoints(result.x_adv, result.margin, result.fooled, result.run_margins, result.points)
    on_progress = scale_progress(options.on_progress, 0.0, 1 / max(1, len(queue)))
    is_cpu, iteration = problem.x.device.type == "cpu", 0
    max_rows = balanced_batch_size(len(queue), options.batch_size, BATCH_SLACK if is_cpu else 1.0)
    batch: _Batch | None = None
    while True:
        num_free = max_rows - (0 if batch is None else len(batch.rows))
        if len(queue) and num_free >= max(1, REFILL_FRACTION * max_rows):
            is_done = best.fooled if options.stop_when_fooled else None
            batch = _take_new_runs(attack, problem, batch, queue, num_free, is_done)
        if batch is None or not len(batch.rows):
            return result
        state, output = batch.state, attack.evaluate(batch.problem, batch.state)
        best.update(batch.run_indices, batch.is_active, attack, batch.problem, state, output)
        is_synced = is_cpu or iteration % DEVICE_SYNC_INTERVAL == 0
        if on_progress is not None and is_synced:
            fraction_active = float(state.step.sum()) / max(1, attack.max_steps)
            on_progress(queue.num_taken - len(batch.rows) + fraction_active)
        batch.is_active &= state.step < attack.max_steps
        if (is_over := attack.finished_mask(state)) is not None:
            batch.is_active &= ~is_over
        if options.stop_when_fooled:
            batch.is_active &= ~best.fooled[batch.rows]
        iteration += 1
        if (is_cpu or iteration % DEVICE_SYNC_INTERVAL == 0) and not batch.is_active.all():
            active_rows = batch.is_active.nonzero().flatten()  # a mask is a wait per tensor
            output, batch = _select_rows(output, active_rows), batch.select(active_rows)
        if len(batch.rows):
            batch.state.x_t = attack.next_points(batch.problem, batch.state, output)
            batch.state.step += 1


@dataclass
class _Batch:
    """The active runs, one row each."""

    rows: Tensor  # (N,) their samples
    run_indices: Tensor  # (N,) which of the runs of its sample each is
    is_active: Tensor  # (N,) bool: not finished
    problem: Problem
    state: AttackState

    def select(self, indices: Tensor) -> _Batch:
        return _Batch(
            self.rows[indices],
            self.run_indices[indices],
            self.is_active[indices],
            self.problem.select(indices),
            self.state.select(indices),
        )

    def concat(self, other: _Batch, problem: Problem) -> _Batch:
        """These runs, then those of ``other``; ``problem`` has all samples."""
        rows = torch.cat([self.rows, other.rows])
        return _Batch(
            rows,
            torch.cat([self.run_indices, other.run_indices]),
            torch.cat([self.is_active, other.is_active]),
            problem.select(rows),
            self.state.concat(other.state),
        )


def _take_new_runs(
    attack: Attack,
    problem: Problem,
    batch: _Batch | None,
    queue: AttackRunQueue,
    num_free: int,
    is_done: Tensor | None,
) -> _Batch | None:
    """The batch with up to ``num_free`` new runs."""
    active_samples = problem.row_numbers(0) if batch is None else batch.rows
    rows, run_indices = queue.take(num_free, is_done, active_samples)
    if not len(rows):  # all waiting samples are active in another run
        return batch
    new_problem = problem.select(rows)
    state = attack.init_state(new_problem, run_indices)
    new_runs = _Batch(
        rows, run_indices, torch.ones_like(rows, dtype=torch.bool), new_problem, state
    )
    return new_runs if batch is None or not len(batch.rows) else batch.concat(new_runs, problem)


def _select_rows(output: ModelOutput, indices: Tensor) -> ModelOutput:
    grad = None if output.grad is None else output.grad[indices]
    return ModelOutput(output.logits[indices], output.loss[indices], grad)


@dataclass
class AttackRunQueue:
    """Runs that wait: the first run of all samples, then the second of all ..."""

    samples: Tensor
    runs: int
    saturating_batch: int = 128  # rows that saturate a CPU
    run_mask: Tensor | None = None  # (N, runs) which of them to make; None: all
    num_taken: int = 0

    def __len__(self) -> int:
        return len(self.samples) * self.runs - self.num_taken

    def take(
        self, max_runs: int, is_done: Tensor | None, active_samples: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Up to ``max_runs`` samples and the numbers of their runs.

        Samples of the mask ``is_done`` need no more runs. On a CPU a sample of ``active_samples``
        waits with its next run once the batch has ``saturating_batch`` rows: the run that it is in
        may fool it, and more rows gain little.
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
                num_unsaturated = self.saturating_batch - len(active_samples)
                limit = max(int(must_wait.int().argmax()), num_unsaturated)
                if len(candidates) > limit:
                    candidates = candidates[:limit]
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
        """(N,) whether this run is to be made for each of the samples."""
        if self.run_mask is None:
            return torch.ones_like(samples, dtype=torch.bool)
        return self.run_mask[samples, run_index]


def balanced_batch_size(num_runs: int, batch_size: int, slack: float) -> int:
    """Rows of a batch such that the last batch is not much smaller than the others."""
    return -(-num_runs // max(1, math.ceil(num_runs / (slack * batch_size))))


@dataclass
class BestPoints:
    """The image of the best point of each sample so far."""

    x: Tensor
    margin: Tensor
    fooled: Tensor
    run_margins: Tensor | None  # (N, runs) the largest margin of each run, or not recorded
    points: Tensor | None = None  # the parameters of x, for parametric threats

    def update(
        self,
        run_indices: Tensor,
        is_active: Tensor,
        attack: Attack,
        problem: Problem,
        state: AttackState,
        output: ModelOutput,
    ) -> None:
        """Keeps the current points of active runs that are better.

        ``run_indices`` (N,) is the number of each run of its sample, `Problem.counter_rows`.
        """
        rows, logits = problem.counter_rows, output.logits
        margins, index = margin_if_finite(logits, problem.y), problem.counter_index
        if self.run_margins is not None:
            is_valid = attack.valid_mask(problem, state, torch.ones_like(is_active))
            active_margins = margins.where(
                is_active if is_valid is None else is_active & is_valid, -torch.inf
            )
            self.run_margins[rows, run_indices] = self.run_margins[rows, run_indices].maximum(
                active_margins
            )
        fooled = output.always_misclassified
        is_better = is_active & (margins > self.margin[index])
        if fooled is not None:  # of a randomized model: one draw less may cost some of the margin
            is_better |= is_active & fooled & ~self.fooled[index]
        if not any_or_accelerator(is_better):
            return  # a fooled sample has a larger margin than any other
        fooled = is_misclassified(logits, problem.y) if fooled is None else fooled
        is_better &= fooled >= self.fooled[index]
        is_valid = attack.valid_mask(problem, state, fooled)
        if is_valid is not None:
            is_better = is_better & is_valid
        if isinstance(index, slice) and self.points is None:
            copy_rows_(self.x[index], is_better, state.x_t)
            self.margin[index] = margins.where(is_better, self.margin[index])
            self.fooled[index] |= fooled & is_better  # never worse than before
            return
        if rows.device.type != "cpu":
            self._copy_best_rows(problem, state.x_t, margins, fooled, is_better)
            return
        if len(rows[is_better].unique()) < int(is_better.sum()):
            # A sample may be in several runs at once.
            best = best_row_per_sample(
                rows, margins.where(is_better, -torch.inf), fooled & is_better, len(self.fooled)
            )
            is_better &= best == torch.arange(len(rows))
        samples = rows[is_better]
        with torch.no_grad():
            self.x[samples] = problem.images_at(state.x_t[is_better], is_better)
        if self.points is not None:
            self.points[samples] = state.x_t[is_better]
        self.margin[samples] = margins[is_better]
        self.fooled[samples] = fooled[is_better]

    def _copy_best_rows(
        self, problem: Problem, x_t: Tensor, margins: Tensor, fooled: Tensor, is_better: Tensor
    ) -> None:
        """Copies the best of the better rows of each sample, without a wait for the device.

        All rows of a sample write the same values, so that their order does not matter.
        """
        rows = problem.counter_rows
        active_margins = margins.where(is_better, -torch.inf)
        best = best_row_per_sample(rows, active_margins, fooled & is_better, len(self.fooled))
        changes = is_better[best]
        with torch.no_grad():
            images = problem.images_at(x_t)[best]
        self.x[rows] = images.where(broadcast_to_images(changes), self.x[rows])
        if self.points is not None:
            change_points = changes.view(-1, *[1] * (x_t.ndim - 1))
            self.points[rows] = x_t[best].where(change_points, self.points[rows])
        self.margin[rows] = margins[best].where(changes, self.margin[rows])
        self.fooled[rows] = fooled[best].where(changes, self.fooled[rows])


def best_row_per_sample(rows: Tensor, margins: Tensor, fooled: Tensor, n: int) -> Tensor:
    """(N,) the best row of each row's sample: fooled before not, then the largest margin."""
    positions = torch.arange(len(rows), device=rows.device)
    order = torch.argsort(margins, stable=True)
    order = order[torch.argsort(fooled[order].int(), stable=True)]
    rank = torch.empty_like(positions).scatter_(0, order, positions)
    top = rank.new_full((n,), -1).scatter_reduce_(0, rows, rank, "amax")
    return order[top[rows]]
