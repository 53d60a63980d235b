"""The loop that every attack shares. An attack only says where to look next.

An attack is a frozen set of arguments with three functions: `begin` gives the first points of a run
(a restart, or a target), `goal` says what is to rise, `advance` gives the next points from what was
seen at the last ones. The loop looks, keeps each sample's best point, drops samples that are broken
or finished, and counts the passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from buttress.attacks.losses import cross_entropy, margin
from buttress.attacks.problem import Meter, Problem, Seen
from buttress.registry import Registry
from buttress.threat import NORMS, Norm


@dataclass
class State:
    """Where a run stands: the current points, and in subclasses whatever else it must remember.

    Every tensor has one row per sample, so that samples can leave at any step.
    """

    x_t: Tensor  # (N, C, H, W)
    step: int = 0

    def select(self, keep: Tensor) -> State:
        rows: dict[str, Any] = {k: v[keep] for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **rows)


@dataclass(frozen=True)
class Attack(ABC):
    """The arguments of an attack, and its mathematics."""

    norms: ClassVar[tuple[Norm, ...]] = NORMS
    needs_grad: ClassVar[bool] = True
    # False: some points are looked at outside the ball; they never count as a success.
    stays_inside: ClassVar[bool] = True

    @property
    @abstractmethod
    def length(self) -> int:
        """Steps of one run, at most."""

    @property
    def passes(self) -> int:
        """Gradients averaged at each point, for randomised models."""
        return 1

    def parts(self, problem: Problem) -> Sequence[Attack]:
        """The attacks of an ensemble, in order; a single attack is its own only part."""
        return (self,)

    def runs(self, problem: Problem) -> int:
        """Restarts, or targets, or both multiplied."""
        return 1

    def goal(self, problem: Problem, state: State, logits: Tensor) -> Tensor:
        """(N,) what is to rise."""
        return cross_entropy(logits, problem.y)

    @abstractmethod
    def begin(self, problem: Problem, run: int) -> State:
        """The first points of a run."""

    @abstractmethod
    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        """The next points from what was seen at ``state.x_t``; may change the state."""

    def finished(self, state: State) -> Tensor | None:
        """(N,) samples whose run is over before ``length`` steps; None if none ever is."""
        return None


ATTACKS: Registry[type[Attack]] = Registry("attack")


@dataclass
class Outcome:
    """The result of an attack on a batch."""

    x_adv: Tensor  # (N, C, H, W): the best point found, the clean image if none is better
    broken: Tensor  # (N,) bool: x_adv is misclassified
    margin: Tensor  # (N,) max_{k != y} z_k - z_y at x_adv
    meter: Meter


OnStep = Callable[[int], None]  # called with the number of samples still attacked


def run(
    attack: Attack,
    problem: Problem,
    *,
    stop_when_broken: bool = False,
    on_step: OnStep | None = None,
) -> Outcome:
    """Runs an attack and returns each sample's best point.

    A misclassified point is better than any other; among equals the larger margin
    max_{k != y} z_k - z_y is better, which means the same for every loss, target and step. With
    ``stop_when_broken`` a sample leaves at its first misclassified point. The parts of an ensemble
    see only what the parts before them left.
    """
    meter = Meter.of(len(problem.x), problem.x.device)
    everyone = torch.arange(len(problem.x), device=problem.x.device)
    problem = replace(problem, meter=meter, rows=everyone)
    seen = problem.look(problem.x, lambda z: margin(z, problem.y), grad=False)
    problem = replace(problem, clean=seen.logits)
    best = Best(problem.x.clone(), _rank(seen.loss), wrong(seen.logits, problem.y))
    parts = attack.parts(problem)
    for number, part in enumerate(parts):
        here = problem if len(parts) == 1 else _renamed(problem, f"/{number}")
        for index in range(part.runs(here)):
            drop = stop_when_broken or len(parts) > 1
            rows = everyone[~best.broken] if drop else everyone
            if len(rows):
                _one_run(part, here.select(rows), index, (best, rows), drop, on_step)
    return Outcome(best.x, best.broken, best.margin, meter)


def last_point(attack: Attack, problem: Problem) -> Tensor:
    """The last point of one run, as adversarial training uses it, for ``length`` passes."""
    state = attack.begin(problem, 0)
    for step in range(attack.length):
        seen = problem.look(state.x_t, lambda z: attack.goal(problem, state, z))
        state.x_t, state.step = attack.advance(problem, state, seen), step + 1
    return state.x_t


def _one_run(
    attack: Attack,
    problem: Problem,
    index: int,
    kept: tuple[Best, Tensor],
    drop: bool,
    on_step: OnStep | None,
) -> None:
    best, rows = kept
    here, state = problem, attack.begin(problem, index)
    for step in range(attack.length + 1):
        is_last = step == attack.length
        seen = _look(attack, here, state, grad=attack.needs_grad and not is_last)
        best.improve(rows, state.x_t, seen.logits, here, attack.stays_inside)
        if on_step is not None:
            on_step(len(rows))
        if is_last:
            return
        keep = ~best.broken[rows] if drop else None
        over = attack.finished(state)
        if over is not None:
            keep = ~over if keep is None else keep & ~over
        if keep is not None and not keep.all():
            rows, here, state = rows[keep], here.select(keep), state.select(keep)
            if not len(rows):
                return
            grad = None if seen.grad is None else seen.grad[keep]
            seen = Seen(seen.logits[keep], seen.loss[keep], grad)
        state.x_t, state.step = attack.advance(here, state, seen), step + 1


def _look(attack: Attack, problem: Problem, state: State, *, grad: bool) -> Seen:
    return problem.look(
        state.x_t,
        lambda logits: attack.goal(problem, state, logits),
        grad=grad,
        passes=attack.passes,
    )


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

    def improve(
        self, rows: Tensor, x_t: Tensor, logits: Tensor, problem: Problem, is_inside: bool
    ) -> None:
        broken, gap = wrong(logits, problem.y), _rank(margin(logits, problem.y))
        old_broken, old_gap = self.broken[rows], self.margin[rows]
        better = (broken & ~old_broken) | ((broken == old_broken) & (gap > old_gap))
        if not is_inside:
            better &= problem.threat.distance(problem.x, x_t) <= problem.threat.eps
        chosen = rows[better]
        self.x[chosen] = x_t[better]
        self.margin[chosen] = gap[better]
        self.broken[chosen] = broken[better]


def wrong(logits: Tensor, y: Tensor) -> Tensor:
    """Which predictions are wrong; logits that are not finite are no evidence of a success."""
    return (logits.argmax(1) != y) & logits.isfinite().all(1)


def _rank(gap: Tensor) -> Tensor:
    """Margins that can be compared: one that is not finite is never better."""
    return torch.nan_to_num(gap, nan=-torch.inf, posinf=-torch.inf)
