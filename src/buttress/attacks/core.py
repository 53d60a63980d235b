"""The loop that every attack shares. An attack only says where to look next.

An attack is a frozen set of arguments with two functions: `begin` gives the first points of a run
(a restart, or a target), `advance` gives the next points from what was seen at the last ones. The
loop looks, keeps each sample's best point, drops samples that are broken, and counts the passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from buttress.attacks.losses import LOSSES, Loss
from buttress.attacks.problem import Meter, Problem, Seen
from buttress.registry import Registry
from buttress.threat import NORMS, Norm


@dataclass
class State:
    """Where a run stands: the current points, and in subclasses whatever else it must remember.

    Every field is a tensor with one row per sample, so that samples can leave at any step.
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

    @property
    @abstractmethod
    def length(self) -> int:
        """Steps of one run."""

    @property
    def runs(self) -> int:
        """Restarts, or targets, or both multiplied."""
        return 1

    @property
    def objective(self) -> Loss:
        """What is maximised."""
        return LOSSES["ce"]

    @abstractmethod
    def begin(self, problem: Problem, run: int) -> State:
        """The first points of a run."""

    @abstractmethod
    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        """The next points, inside ball and box, from what was seen at ``state.x_t``."""


ATTACKS: Registry[type[Attack]] = Registry("attack")


@dataclass
class Outcome:
    """The result of an attack on a batch."""

    x_adv: Tensor  # (N, C, H, W): the best point found, the clean image if none is better
    broken: Tensor  # (N,) bool: x_adv is misclassified
    loss: Tensor  # (N,) what was maximised, at x_adv
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

    A misclassified point is better than any other; among equals the higher loss is better. With
    ``stop_when_broken`` a sample leaves at its first misclassified point.
    """
    meter = Meter.of(len(problem.x), problem.x.device)
    problem = _with_meter(problem, meter)
    best = Best.at_clean(problem)
    for run_index in range(attack.runs):
        rows = ~best.broken if stop_when_broken else torch.ones_like(best.broken)
        if not rows.any():
            break
        _one_run(attack, problem, run_index, best, stop_when_broken, on_step)
    return Outcome(best.x, best.broken, best.loss, meter)


def last_point(attack: Attack, problem: Problem) -> Tensor:
    """The last point of one run, as adversarial training uses it, for ``length`` passes."""
    state = attack.begin(problem, 0)
    for step in range(attack.length):
        seen = problem.look(state.x_t)
        state.x_t, state.step = attack.advance(problem, state, seen), step + 1
    return state.x_t


def _one_run(
    attack: Attack,
    problem: Problem,
    run_index: int,
    best: Best,
    stop_when_broken: bool,
    on_step: OnStep | None,
) -> None:
    rows = torch.arange(len(problem.x), device=problem.x.device)
    if stop_when_broken:
        rows = rows[~best.broken]
    here = problem.select(rows)
    state = attack.begin(here, run_index)
    for step in range(attack.length + 1):
        is_last = step == attack.length
        seen = here.look(state.x_t, grad=not is_last)
        best.improve(rows, state.x_t, seen, here.y)
        if on_step is not None:
            on_step(len(rows))
        if is_last:
            return
        if stop_when_broken:
            keep = ~best.broken[rows]
            if not keep.all():
                rows, here, state = rows[keep], here.select(keep), state.select(keep)
                seen = Seen(*(None if t is None else t[keep] for t in seen))  # type: ignore[arg-type]
                if not len(rows):
                    return
        state.x_t, state.step = attack.advance(here, state, seen), step + 1


def _with_meter(problem: Problem, meter: Meter) -> Problem:
    return replace(problem, meter=meter, rows=torch.arange(len(problem.x), device=problem.x.device))


@dataclass
class Best:
    """Each sample's best point so far."""

    x: Tensor
    loss: Tensor
    broken: Tensor

    @classmethod
    def at_clean(cls, problem: Problem) -> Best:
        seen = problem.look(problem.x, grad=False)
        return cls(problem.x.clone(), _rank(seen.loss), wrong(seen.logits, problem.y))

    def improve(self, rows: Tensor, x_t: Tensor, seen: Seen, y: Tensor) -> None:
        broken, loss = wrong(seen.logits, y), _rank(seen.loss)
        old_broken, old_loss = self.broken[rows], self.loss[rows]
        better = (broken & ~old_broken) | ((broken == old_broken) & (loss > old_loss))
        # A lost loss (not finite) is never better, so that results stay finite.
        chosen = rows[better]
        self.x[chosen] = x_t[better]
        self.loss[chosen] = loss[better]
        self.broken[chosen] = broken[better]


def wrong(logits: Tensor, y: Tensor) -> Tensor:
    """Which predictions are wrong; logits that are not finite are no evidence of a success."""
    return (logits.argmax(1) != y) & logits.isfinite().all(1)


def _rank(loss: Tensor) -> Tensor:
    return torch.nan_to_num(loss, nan=-torch.inf, posinf=torch.finfo(loss.dtype).max)
