"""What an attack is: it says where to begin and where to look next; `loop` does the rest.

An attack is a frozen set of arguments with three functions: `begin` gives the first points of runs
(restarts, or targets), `goal` says what is to rise, `advance` gives the next points from what was
seen at the last ones. Every row of a batch counts its own steps, so that rows can come and go.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from buttress.attacks.losses import cross_entropy
from buttress.attacks.problem import Problem, Seen
from buttress.errors import UserError
from buttress.registry import Registry
from buttress.threat import NORMS, Norm, Threat

S = TypeVar("S", bound="State")
Keep = Literal["best", "last"]  # which point of a run counts: the best of all, or the last alone


@dataclass
class State:
    """Where runs stand: the current points, and in subclasses whatever else they must remember.

    Every tensor has one row per run, so that runs can begin and end at any step.
    """

    x_t: Tensor  # (N, C, H, W)
    step: Tensor = field(  # (N,) int64: steps done
        kw_only=True, default_factory=lambda: torch.empty(0, dtype=torch.int64)
    )

    def __post_init__(self) -> None:
        if len(self.step) != len(self.x_t):
            self.step = torch.zeros(len(self.x_t), dtype=torch.int64, device=self.x_t.device)

    def select(self: S, keep: Tensor) -> S:
        """The rows of a mask or of indices."""
        return replace(self, **{name: rows[keep] for name, rows in self._tensors().items()})

    def joined(self: S, other: S) -> S:
        """These rows, then those of ``other``."""
        more = other._tensors()
        both: dict[str, Any] = {
            name: torch.cat([rows, more[name]]) for name, rows in self._tensors().items()
        }
        return replace(self, **both)

    def _tensors(self) -> dict[str, Tensor]:
        return {k: v for k, v in vars(self).items() if isinstance(v, Tensor)}


class Standing(NamedTuple):
    """How far the samples that are left have been moved, for an ensemble to decide who goes on."""

    norm: Norm
    margin: Tensor  # (N,) the best so far, negative
    clean: Tensor  # (N,) that of the clean image
    is_blind: Tensor  # (N,) all gradients were zero, or some not finite


@dataclass(frozen=True)
class Attack(ABC):
    """The arguments of an attack, and its mathematics."""

    norms: ClassVar[tuple[Norm, ...]] = NORMS
    needs_grad: ClassVar[bool] = True
    has_queries: ClassVar[bool] = False  # many passes need no gradient; asked of each part
    reorders: ClassVar[bool] = (
        False  # an ensemble whose parts aim first where parts before came near
    )

    @property
    @abstractmethod
    def length(self) -> int:
        """Steps of one run, at most."""

    @property
    def passes(self) -> int:
        """Passes averaged at each point, for randomised models."""
        return 1

    def parts(self, problem: Problem) -> Sequence[Attack]:
        """The attacks of an ensemble, in order; a single attack is its own only part."""
        return (self,)

    def enlists(self, number: int, standing: Standing) -> Tensor | None:
        """(N,) which of the samples left part ``number`` of an ensemble is for; None: all."""
        return None

    def aims(self, number: int, norm: Norm) -> float:
        """Part ``number`` aims only at classes that parts before it came this near.

        In shares of the clean margin that were left. Only for an ensemble that `reorders`.
        """
        return math.inf

    def usual_share(self, number: int, norm: Norm) -> float:
        """Of the passes of part ``number`` for all samples left, what is usual: only for plans."""
        return 1.0

    def runs(self, problem: Problem) -> int:
        """Restarts, or targets, or both multiplied."""
        return 1

    def ranks(self, problem: Problem) -> Tensor | None:
        """(runs,) which of the other classes each run aims at: 0 the nearest; None: at none."""
        return None

    def goal(self, problem: Problem, state: State, logits: Tensor) -> Tensor:
        """(N,) what is to rise."""
        return cross_entropy(logits, problem.y)

    @abstractmethod
    def begin(self, problem: Problem, run: Tensor) -> State:
        """The first points; row i of the problem is in its run number ``run[i]``."""

    @abstractmethod
    def advance(self, problem: Problem, state: State, seen: Seen) -> Tensor:
        """The next points from what was seen at ``state.x_t``; may change the state."""

    def look(self, problem: Problem, state: State) -> Seen:
        """What the model shows at the current points."""

        def score(logits: Tensor) -> Tensor:
            return self.goal(problem, state, logits)

        return problem.look(state.x_t, score, grad=self.wants_grad(state), passes=self.passes)

    def wants_grad(self, state: State) -> bool | Tensor:
        """Which rows need a gradient: on a processor not those that look for the last time."""
        if not self.needs_grad or state.step.device.type != "cpu":
            return self.needs_grad
        return state.step < self.length

    def inside(self, problem: Problem, state: State, broken: Tensor) -> Tensor | None:
        """(N,) which of the current points may count; None if all are in the ball.

        Only rows with ``broken`` need a true answer.
        """
        return None

    def finished(self, state: State) -> Tensor | None:
        """(N,) runs that are over before ``length`` steps; None if none ever is."""
        return None


ATTACKS: Registry[type[Attack]] = Registry("attack")


def at_least_one(**given: int) -> None:
    """Refuses counts below one, and names them all."""
    if any(value < 1 for value in given.values()):
        must = " and ".join(f"`{name} >= 1`" for name in given)
        came = ", ".join(f"{name}={value}" for name, value in given.items())
        raise UserError(f"{must} must hold, but got {came}")


def check_norm(attack: Attack, threat: Threat) -> None:
    if threat.norm not in attack.norms:
        name = next((e.name for e in ATTACKS if e.value is type(attack)), type(attack).__name__)
        raise UserError(f"attack {name} takes {', '.join(attack.norms)}, but got {threat}")


def column(values: Tensor) -> Tensor:
    """(N,) -> (N, 1, 1, 1), to multiply images with."""
    return values.view(-1, 1, 1, 1)


def put(target: Tensor, where: Tensor, source: Tensor) -> None:
    """``target[where] = source[where]`` for a mask of rows, without a wait for the device.

    Numbers must be finite: they are mixed with weights of 0 and 1, many times faster than a choice.
    """
    if target.is_floating_point():
        torch.lerp(target, source, where.to(target).view(-1, *[1] * (target.ndim - 1)), out=target)
    else:
        target[where] = source[where]


def some(mask: Tensor) -> bool:
    """Whether any row is set. An accelerator is not waited for: there the answer is always yes."""
    return mask.device.type != "cpu" or bool(mask.any())
