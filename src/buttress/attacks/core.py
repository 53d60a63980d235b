"""The interface of an attack; `buttress.engine` executes it.

An attack is a frozen set of arguments with three functions: `init_state` gives the first points of
runs (restarts, or targets), `compute_loss` what to maximize, `next_points` the next points from the
model's output at the last ones. Every row of a batch counts its own steps, so that rows can come
and go.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, TypeVar, cast

import torch
from torch import Tensor

from buttress.attacks.losses import cross_entropy
from buttress.attacks.problem import ModelOutput, Problem
from buttress.errors import UserError
from buttress.models.cost import PassCount
from buttress.registry import Registry, normalize_name
from buttress.threats.core import Space, Threat
from buttress.threats.norm_ball import NORMS

S = TypeVar("S", bound="AttackState")
KeptPoint = Literal["best", "last"]  # which point of a run counts


@dataclass
class AttackState:
    """State of runs: the current points, and in subclasses what else an attack remembers.

    Every tensor has one row per run, so that runs can begin and end at any step.
    """

    x_t: Tensor  # (N, C, H, W)
    step: Tensor = field(  # (N,) int64: steps done
        kw_only=True, default_factory=lambda: torch.empty(0, dtype=torch.int64)
    )

    def __post_init__(self) -> None:
        if len(self.step) != len(self.x_t):
            self.step = torch.zeros(len(self.x_t), dtype=torch.int64, device=self.x_t.device)

    def select(self: S, index: Tensor) -> S:
        """The rows of a mask or of indices."""
        return replace(self, **{name: rows[index] for name, rows in self._tensors().items()})

    def concat(self: S, other: S) -> S:
        """These rows, then those of ``other``."""
        other_tensors = other._tensors()
        tensors: dict[str, Any] = {
            name: torch.cat([rows, other_tensors[name]]) for name, rows in self._tensors().items()
        }
        return replace(self, **tensors)

    def _tensors(self) -> dict[str, Tensor]:
        return {k: v for k, v in vars(self).items() if isinstance(v, Tensor)}


class EnsembleState(NamedTuple):
    """Margins of the samples not fooled yet, from which an ensemble selects."""

    space: Space
    best_margin: Tensor  # (N,) the best so far, negative
    clean_margin: Tensor  # (N,) that of the clean image
    has_unusable_gradient: Tensor  # (N,) all gradients were zero, or some not finite
    is_improved: Tensor  # (N,) the stage before found a larger margin than all others


@dataclass(frozen=True)
class Attack(ABC):
    """The arguments of an attack, and its mathematics."""

    spaces: ClassVar[tuple[Space, ...]] = NORMS  # in which it can move
    kinds: ClassVar[tuple[str, ...]] = ()  # of threat models, if it takes only some
    needs_grad: ClassVar[bool] = True
    # Added to what identifies a record: set where an attack changed under the same arguments, so
    # that records of before are not reused.
    record_identity: ClassVar[Mapping[str, str]] = {}
    has_forward_only_passes: ClassVar[bool] = False  # many passes need no gradient
    reorders_targets: ClassVar[bool] = False  # stages begin with the classes that came nearest
    # Passes averaged at each point, for randomized models; an ensemble's holds for all its stages.
    eot_samples: int = field(default=1, kw_only=True)
    # What the backward pass goes through, see `buttress.models.surrogate`; None: the model itself.
    surrogate: Any = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def max_steps(self) -> int:
        """Steps of one run, at most."""

    @classmethod
    def supports(cls, threat: Threat) -> bool:
        """Whether it can move in a threat model; parametric ones are norm balls of parameters."""
        return threat.kind in cls.kinds if cls.kinds else threat.space in cls.spaces

    def stages(self, threat: Threat, num_classes: int) -> Sequence[Attack]:
        """The attacks of an ensemble, in order; a single attack is its own only stage."""
        return (self,)

    def select_samples(self, stage: int, state: EnsembleState) -> Tensor | None:
        """(N,) which of the samples not fooled yet a stage of an ensemble attacks; None: all."""
        return None

    def target_threshold(self, stage: int, space: Space) -> float:
        """Fraction of the clean margin: a stage targets classes that kept at most that.

        Only for an ensemble that `reorders_targets`.
        """
        return math.inf

    def expected_fraction(self, stage: int, space: Space) -> float:
        """Expected fraction of a stage's passes, for cost estimates."""
        return 1.0

    def passes_per_run(self, space: Space, num_classes: int) -> PassCount:
        """Passes of one run on a sample that it does not fool; `eot_samples` multiplies them.

        For a CPU: an accelerator also computes the gradient at the last point.
        """
        return PassCount(self.max_steps + 1, self.max_steps if self.needs_grad else 0)

    def num_runs(self, num_classes: int) -> int:
        """Restarts, or targets, or both multiplied."""
        return 1

    def target_ranks(self, num_classes: int) -> Tensor | None:
        """(runs,) rank of the class that each run targets, 0 the nearest; None: untargeted."""
        return None

    def compute_loss(self, problem: Problem, state: AttackState, logits: Tensor) -> Tensor:
        """(N,) the loss to maximize."""
        return cross_entropy(logits, problem.y)

    @abstractmethod
    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        """The first points; row i of the problem is in its run number ``run_index[i]``."""

    @abstractmethod
    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        """The next points from the output at ``state.x_t``; may change the state."""

    def evaluate(self, problem: Problem, state: AttackState) -> ModelOutput:
        """Logits, loss and gradient at the current points."""

        def loss_fn(logits: Tensor) -> Tensor:
            return self.compute_loss(problem, state, logits)

        return problem.evaluate_at(state.x_t, loss_fn, grad=self.grad_mask(state))

    def grad_mask(self, state: AttackState) -> bool | Tensor:
        """Rows that need a gradient: on a CPU not those at their last point."""
        if not self.needs_grad or state.step.device.type != "cpu":
            return self.needs_grad
        return state.step < self.max_steps

    def valid_mask(self, problem: Problem, state: AttackState, fooled: Tensor) -> Tensor | None:
        """(N,) which of the current points may count; None if all are in the ball.

        Only rows with ``fooled`` need a true answer.
        """
        return None

    def finished_mask(self, state: AttackState) -> Tensor | None:
        """(N,) runs that are over before ``max_steps`` steps; None if none ever is."""
        return None


ATTACKS: Registry[type[Attack]] = Registry("attack")


def check_positive(**counts: int) -> None:
    """Refuses counts below one, and names them all."""
    if any(value < 1 for value in counts.values()):
        expected = " and ".join(f"`{name} >= 1`" for name in counts)
        given = ", ".join(f"{name}={value}" for name, value in counts.items())
        raise UserError(f"{expected} must hold, but got {given}")


def check_attack_threat(attack: Attack, threat: Threat) -> None:
    """Refuses a threat model that an attack cannot move in, and says which attacks can."""
    if not attack.supports(threat):
        name = next((e.name for e in ATTACKS if e.value is type(attack)), type(attack).__name__)
        others = [e.name for e in ATTACKS if e.value.supports(threat)]
        takes = ", ".join(attack.kinds or attack.spaces)
        raise UserError(
            f"attack {name} takes {takes}, but got {threat}; attacks for "
            f"{threat.kind} are {', '.join(others)}"
        )


def broadcast_to_images(values: Tensor) -> Tensor:
    """(N,) -> (N, 1, 1, 1), to multiply images with."""
    return values.view(-1, 1, 1, 1)


def copy_rows_(target: Tensor, mask: Tensor, source: Tensor) -> None:
    """``target[mask] = source[mask]`` for a mask of rows, without a wait for the device.

    Values must be finite: they are mixed with weights 0 and 1, many times faster than `where`.
    """
    row_mask = mask.view(-1, *[1] * (target.ndim - 1))
    if target.is_floating_point():
        torch.lerp(target, source, row_mask.to(target), out=target)
    else:
        target.copy_(torch.where(row_mask, source, target))


def any_or_accelerator(mask: Tensor) -> bool:
    """Whether any row is set. An accelerator is not waited for: there the answer is always yes."""
    return mask.device.type != "cpu" or bool(mask.any())


@dataclass(frozen=True)
class EnsembleAttack(Attack):
    """An attack that consists of its `stages` alone."""

    @property
    def max_steps(self) -> int:
        return 0

    def init_state(self, problem: Problem, run_index: Tensor) -> AttackState:
        self._raise_no_own_steps()

    def next_points(self, problem: Problem, state: AttackState, output: ModelOutput) -> Tensor:
        self._raise_no_own_steps()

    def _raise_no_own_steps(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} has no steps of its own: run its stages")


def list_attacks(tag: str | None = None) -> list[str]:
    return ATTACKS.names(tag)


def create_attack(name: str, **args: Any) -> Attack:
    """An attack by name, with its arguments checked."""
    return cast(Attack, ATTACKS.create(name, args))


def attack_name(attack: Attack) -> str:
    """The registered name of an attack; it names its random streams."""
    return next(normalize_name(e.name) for e in ATTACKS if e.value is type(attack))
