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

from buttress.attacks.core import Attack, Standing, State, put, some
from buttress.attacks.losses import margin, true
from buttress.attacks.problem import Meter, Problem, Seen
from buttress.attacks.targets import by_distance, ranked

REFILL = 1 / 8  # of the batch must be free before new runs are taken in: each intake has its price
SLACK = 1.25  # of the batch size: a few rows more are better than a second, small batch
PATIENCE = 4  # steps between two looks at who is broken, on a device that is slow to ask


@dataclass
class Outcome:
    """The result of an attack on a batch."""

    x_adv: Tensor  # (N, C, H, W): the best point found, the clean image if none is better
    broken: Tensor  # (N,) bool: x_adv is misclassified
    margin: Tensor  # (N,) max_{k != y} z_k - z_y at x_adv
    meter: Meter
    names: tuple[str, ...] = ()  # of the parts, for an ensemble
    reached: Tensor | None = None  # (N, runs) the largest margin of each run, if they have targets

    def replace(self, rows: Tensor, other: Outcome) -> None:
        """Takes over the results of a second search on some rows, and adds its cost."""
        self.x_adv[rows], self.broken[rows] = other.x_adv, other.broken
        self.margin[rows] = other.margin
        self._add(rows, other)

    def improve(self, rows: Tensor, other: Outcome) -> None:
        """Takes over what other runs of some rows found, where that is better, and adds their cost.

        A broken point is better than any other, else the larger margin counts.
        """
        as_broken = other.broken == self.broken[rows]
        larger = other.margin > self.margin[rows]
        better = larger.where(as_broken, other.broken)
        chosen = rows[better]
        self.x_adv[chosen], self.broken[chosen] = other.x_adv[better], other.broken[better]
        self.margin[chosen] = other.margin[better]
        self._add(rows, other)

    def _add(self, rows: Tensor, other: Outcome) -> None:
        self.meter.merge(rows, other.meter)
        if other.reached is not None:
            if self.reached is None:
                shape = len(self.margin), other.reached.shape[1]
                self.reached = other.reached.new_full(shape, -torch.inf)
            self.reached[rows] = self.reached[rows].maximum(other.reached)

    def afresh(self, rows: Tensor) -> Outcome:
        """Where some rows stand, with nothing spent yet: for a search that goes on from there."""
        meter = Meter.of(len(self.broken[rows]), self.broken.device)
        return Outcome(self.x_adv[rows], self.broken[rows], self.margin[rows], meter)


OnStep = Callable[[float], None]  # called with the share of the work that is done


@dataclass(frozen=True)
class Ways:
    """How runs are worked off."""

    batch_size: int = 256
    drop: bool = False  # samples leave when they are broken
    on_step: OnStep | None = None


class Search(Protocol):
    """One attack on a problem, from where its samples stand."""

    def __call__(
        self, attack: Attack, problem: Problem, so_far: Outcome, ways: Ways
    ) -> Outcome: ...


def search(attack: Attack, problem: Problem, so_far: Outcome, ways: Ways) -> Outcome:
    """All runs of an attack; what they find and cost is put into ``so_far``."""
    problem = replace(problem, meter=so_far.meter, rows=problem.rows_of())
    queue = Queue(problem.rows_of(), attack.runs(problem), problem.full, problem.asked)
    if attack.ranks(problem) is not None:
        so_far.reached = so_far.margin.new_full((len(so_far.margin), queue.runs), -torch.inf)
    best = Best(so_far.x_adv, so_far.margin, so_far.broken, so_far.reached)
    told = None if ways.on_step is None else _told(ways.on_step, len(queue))
    _drain(attack, problem, queue, best, ways, told)
    return so_far


def run(
    attack: Attack,
    problem: Problem,
    *,
    batch_size: int = 256,
    stop_when_broken: bool = False,
    on_step: OnStep | None = None,
    search: Search = search,
) -> Outcome:
    """Runs an attack and returns each sample's best point.

    A misclassified point is better than any other; among equals the larger margin
    max_{k != y} z_k - z_y is better, which means the same for every loss, target and step. With
    ``stop_when_broken`` a sample leaves at its first misclassified point. The parts of an ensemble
    see only what the parts before them left.
    """
    meter = Meter.of(len(problem.x), problem.x.device)
    everyone = torch.arange(len(problem.x), device=problem.x.device)
    problem = replace(problem, meter=meter, rows=everyone, asked=None)
    clean = _clean_logits(problem, batch_size, attack.passes)
    problem, gap = replace(problem, clean=clean), margin(clean, problem.y)
    best = Outcome(problem.x.clone(), wrong(clean, problem.y), _rank(gap), meter)
    parts = attack.parts(problem)
    drop = stop_when_broken or len(parts) > 1
    costs = [_cost(part, problem) for part in parts]
    near = clean - true(clean, problem.y)[:, None]  # how near each other class came
    near.scatter_(1, problem.y[:, None], -torch.inf)
    for number, part in enumerate(parts):
        here = problem if len(parts) == 1 else _renamed(problem, f"/{number}")
        rows = everyone[~best.broken] if drop else everyone
        is_blind = meter.flat[rows] | meter.broken_numerics[rows]
        standing = Standing(problem.threat.norm, best.margin[rows], gap[rows], is_blind)
        if (chosen := attack.enlists(number, standing)) is not None:
            meter.spared[rows[~chosen]] |= 1 << number
            rows = rows[chosen]
        meter.parts[rows] |= 1 << number
        ranks, most = part.ranks(problem), attack.aims(number, problem.threat.norm)
        if ranks is not None and not math.isinf(most):
            hopeful = (near / gap.clamp_max(-1e-12)[:, None] <= most).sum(1, keepdim=True)
            here = replace(here, asked=ranks.to(hopeful) < hopeful.clamp_min(1))
        told = _within(on_step, sum(costs[:number]) / sum(costs), costs[number] / sum(costs))
        if len(rows):
            ways = Ways(batch_size, drop, told)
            best.reached = None
            found = search(part, here.select(rows), best.afresh(rows), ways)
            best.replace(rows, found)
            if attack.reorders and ranks is not None:
                problem = replace(problem, order=_order(problem, near, rows, found, ranks))
        if told is not None:
            told(1.0)
    meter.flat &= meter.backward > 0  # where there was no gradient at all, none was zero
    return best


def _order(problem: Problem, near: Tensor, rows: Tensor, found: Outcome, ranks: Tensor) -> Tensor:
    """The other classes by the margins that runs towards them reached; takes ``near`` along."""
    assert found.reached is not None
    aims = ranked(problem)[rows][:, ranks.to(rows.device)]  # (R, runs)
    reached = near[rows].scatter_reduce(1, aims, found.reached, "amax")
    near[rows] = reached
    return by_distance(near, problem.y)


def _within(on_step: OnStep | None, before: float, share: float) -> OnStep | None:
    """Progress of one part as progress of the whole."""
    return None if on_step is None else lambda done: on_step(before + share * done)


Stay = Callable[[Seen], Tensor | None] | None  # (N,) samples that do not move on; None: all do


def last_point(attack: Attack, problem: Problem, stay: Stay = None) -> Tensor:
    """The last point of one run, as adversarial training uses it, for ``length`` passes."""
    state = attack.begin(problem, torch.zeros_like(problem.y))
    for _ in range(attack.length):
        seen = attack.look(problem, state)
        holds, old = None if stay is None else stay(seen), state.x_t
        new = attack.advance(problem, state, seen)
        if holds is not None:
            put(new, holds, old)
        state.x_t = new
        state.step += 1
    return state.x_t


@dataclass
class Queue:
    """Runs that wait: all samples in their first run, then all in their second ..."""

    samples: Tensor
    runs: int
    full: int = 128  # rows with which a processor is busy
    asked: Tensor | None = None  # (N, runs) which of them are wanted; None: all
    taken: int = 0

    def __len__(self) -> int:
        return len(self.samples) * self.runs - self.taken

    def take(self, room: int, out: Tensor | None, busy: Tensor) -> tuple[Tensor, Tensor]:
        """Up to ``room`` samples and the numbers of their runs.

        Samples of the mask ``out`` need no more runs. On a processor, which gains little from more
        than ``full`` rows, a sample that is still ``busy`` in one run then waits with the next: it
        may break.
        """
        n, is_patient = len(self.samples), self.samples.device.type == "cpu"
        samples, numbers = [self.samples[:0]], [self.samples[:0]]
        while room > 0 and len(self):
            number, first = divmod(self.taken, n)
            found = self.samples[first : first + room]
            waits = torch.isin(found, busy) & self._wanted(found, number)
            if is_patient and bool(waits.any()):
                free, wanted = int(waits.int().argmax()), self.full - len(busy)
                if len(found) > max(free, wanted):
                    found = found[: max(free, wanted)]
                    room = len(found)
            self.taken += len(found)
            if out is not None:
                found = found[~out[found]]
            found = found[self._wanted(found, number)]
            samples.append(found)
            numbers.append(torch.full_like(found, number))
            busy = torch.cat([busy, found])
            room -= len(found)
        return torch.cat(samples), torch.cat(numbers)

    def _wanted(self, found: Tensor, number: int) -> Tensor:
        """(N,) of which samples this run is asked for."""
        if self.asked is None:
            return torch.ones_like(found, dtype=torch.bool)
        return self.asked[found, number]


def _drain(
    attack: Attack, problem: Problem, queue: Queue, best: Best, ways: Ways, told: OnStep | None
) -> None:
    """Works off the queue, and keeps what is found in ``best``."""
    is_cpu = problem.x.device.type == "cpu"
    rows, here, state = problem.rows_of(0), problem, None
    runs = rows.clone()
    alive, turn = torch.ones_like(rows, dtype=torch.bool), 0
    batch = _even(len(queue), ways.batch_size, SLACK if is_cpu else 1.0)
    while True:
        room = batch - len(rows)
        if len(queue) and room >= max(1, REFILL * batch):
            new, number = queue.take(room, best.broken if ways.drop else None, rows)
            if len(new):  # none if all that wait are still busy in another run
                fresh = problem.select(new)
                begun = attack.begin(fresh, number)
                if state is None or not len(rows):
                    rows, here, state = new, fresh, begun
                else:
                    rows, state = torch.cat([rows, new]), state.joined(begun)
                    here = problem.select(rows)
                runs = torch.cat([runs, number])
                alive = torch.cat([alive, torch.ones_like(new, dtype=torch.bool)])
        if state is None or not len(rows):
            return
        seen = attack.look(here, state)
        best.improve(runs, alive, attack, here, state, seen.logits)
        if told is not None and (is_cpu or turn % PATIENCE == 0):
            under_way = float(state.step.sum()) / max(1, attack.length)
            told(queue.taken - len(rows) + under_way)
        alive &= state.step < attack.length
        if (over := attack.finished(state)) is not None:
            alive &= ~over
        if ways.drop:
            alive &= ~best.broken[rows]
        turn += 1
        if (is_cpu or turn % PATIENCE == 0) and not alive.all():
            rows, here, state = rows[alive], here.select(alive), state.select(alive)
            runs = runs[alive]
            grad = None if seen.grad is None else seen.grad[alive]
            seen, alive = Seen(seen.logits[alive], seen.loss[alive], grad), alive[alive]
        if len(rows):
            state.x_t = attack.advance(here, state, seen)
            state.step += 1


def _even(waiting: int, batch_size: int, slack: float) -> int:
    """Rows of a batch such that the last batch is not much smaller than the others."""
    return -(-waiting // max(1, math.ceil(waiting / (slack * batch_size))))


def _clean_logits(problem: Problem, batch_size: int, passes: int) -> Tensor:
    def nothing(logits: Tensor) -> Tensor:
        return logits.new_zeros(len(logits))

    pieces = [
        problem.select(rows).look(problem.x[rows], nothing, grad=False, passes=passes).logits
        for rows in problem.rows_of().split(batch_size)
    ]
    return torch.cat(pieces)


def attack_cost(attack: Attack, problem: Problem) -> float:
    """Passes of an attack for a sample that survives it, a backward pass counted as two."""
    return sum(_cost(part, problem) for part in attack.parts(problem))


def _cost(attack: Attack, problem: Problem) -> float:
    """Passes of a part for a sample that survives it, a backward pass counted as two."""
    each = 3 if attack.needs_grad else 1
    return float(attack.runs(problem) * (attack.length + 1) * each * attack.passes)


def _told(on_step: OnStep, runs: int) -> OnStep:
    """Progress in runs as a share of them; it never goes back."""
    most = 0.0

    def told(done: float) -> None:
        nonlocal most
        most = max(most, min(1.0, done / max(1, runs)))
        on_step(most)

    return told


def _renamed(problem: Problem, suffix: str) -> Problem:
    """The same problem with random streams of its own."""
    streams = replace(problem.streams, purpose=problem.streams.purpose + suffix)
    return replace(problem, streams=streams)


@dataclass
class Best:
    """Each sample's best point so far."""

    x: Tensor
    margin: Tensor
    broken: Tensor
    reached: Tensor | None  # (N, runs) the largest margin of each run, if that is wanted

    def improve(
        self,
        runs: Tensor,
        alive: Tensor,
        attack: Attack,
        problem: Problem,
        state: State,
        logits: Tensor,
    ) -> None:
        """Takes over the current points that are better, of the runs that are alive.

        ``runs`` has the number of each run; its sample is where the meter of ``problem`` has it.
        """
        rows = problem.meter_rows
        gap, place = _rank(margin(logits, problem.y)), problem.place
        if self.reached is not None:
            inside = attack.inside(problem, state, torch.ones_like(alive))
            new = gap.where(alive if inside is None else alive & inside, -torch.inf)
            self.reached[rows, runs] = self.reached[rows, runs].maximum(new)
        if not some(better := alive & (gap > self.margin[place])):
            return  # what is broken has a larger margin than all that is not
        broken = wrong(logits, problem.y)
        better &= broken >= self.broken[place]
        inside = attack.inside(problem, state, broken)
        if inside is not None:
            better = better & inside
        if isinstance(place, slice):
            put(self.x[place], better, state.x_t)
            self.margin[place] = gap.where(better, self.margin[place])
            self.broken[place] |= broken & better  # what is better is broken if the old one was
            return
        if rows.device.type != "cpu" or len(rows[better].unique()) < int(better.sum()):
            # A sample may be in several runs at once.
            better &= _winners(rows, gap.where(better, -torch.inf), broken, len(self.broken))
        chosen = rows[better]
        self.x[chosen] = state.x_t[better]
        self.margin[chosen] = gap[better]
        self.broken[chosen] = broken[better]


def _winners(rows: Tensor, gap: Tensor, broken: Tensor, n: int) -> Tensor:
    """(N,) the best row of each sample: broken before not broken, then the largest gap."""
    place = torch.arange(len(rows), device=rows.device)
    order = torch.argsort(gap, stable=True)
    order = order[torch.argsort(broken[order].int(), stable=True)]
    rank = torch.empty_like(place).scatter_(0, order, place)
    top = rank.new_full((n,), -1).scatter_reduce_(0, rows, rank, "amax")
    return rank == top[rows]


def wrong(logits: Tensor, y: Tensor) -> Tensor:
    """Which predictions are wrong; logits that are not finite are no evidence of a success."""
    return (logits.argmax(1) != y) & logits.isfinite().all(1)


def _rank(gap: Tensor) -> Tensor:
    """Margins that can be compared: one that is not finite is never better."""
    return torch.nan_to_num(gap, nan=-torch.inf, posinf=-torch.inf)
