"""Threat models: what may happen to an image, independent of who attacks it.

A `Threat` is a set of allowed images. Attacks move in a `SearchSet`: the threat itself where its
members are reached by adding to the image (norm balls, sparse changes, patches), or a norm ball of
parameters where an image is made from them (`parametric`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, TypeVar

from buttress.errors import UserError
from buttress.registry import Registry, normalize_name

if TYPE_CHECKING:
    from torch import Tensor

    from buttress.system.rng import SampleRNG

# How attacks move: in a norm ball of pixels or parameters, or in a union of boxes.
Space = Literal["Linf", "L2", "L1", "L0", "patch"]
SPACES: tuple[Space, ...] = ("Linf", "L2", "L1", "L0", "patch")


ThreatT = TypeVar("ThreatT", bound="Threat")


class Threat(ABC):
    """A set of allowed changes of an image; the result always lies in [0, 1].

    The image itself is always allowed.
    """

    eps: float  # the size of the set; zero allows no change

    def __new__(cls: type[ThreatT], *args: object, **_: object) -> ThreatT:
        if cls is Threat:
            text = args[0] if args and isinstance(args[0], str) else "Linf"
            text = text if ":" in text else f"{text}:8/255"
            raise UserError(
                f"a threat model is made with bt.Threat.parse({text!r}); where one is taken, the "
                "text alone will do, or eps= and norm="
            )
        return super().__new__(cls)

    @property
    @abstractmethod
    def kind(self) -> str:
        """The registered name, such as ``Linf`` or ``patch``."""

    @property
    @abstractmethod
    def budget(self) -> str:
        """The size as text, which `from_budget` reads back."""

    @classmethod
    @abstractmethod
    def from_budget(cls, kind: str, budget: str) -> Threat:
        """The threat model of a registered name and a size."""

    @classmethod
    def usual_budget(cls, kind: str, size: int) -> str:
        """The published or stated size for images of ``size`` pixels; empty if there is none."""
        return ""

    @staticmethod
    def parse(text: str | Threat) -> Threat:
        """Parse a threat model such as ``Linf:8/255`` or ``patch:5``."""
        if isinstance(text, Threat):
            return text
        kind, sep, budget = str(text).partition(":")
        if not sep:
            raise UserError(
                "a threat model is written KIND:BUDGET, like Linf:8/255 or patch:5, but got "
                f"{text!r}"
            )
        name = parse_kind(kind)
        return THREATS.get(name).from_budget(name, budget)

    def __str__(self) -> str:
        return f"{self.kind}:{self.budget}"

    def __repr__(self) -> str:
        return f"Threat.parse({str(self)!r})"

    @property
    def is_trivial(self) -> bool:
        """Whether no change is allowed."""
        return self.eps == 0

    @abstractmethod
    def scaled(self, factor: float) -> Threat:
        """Return the same kind of threat model with its size multiplied by ``factor``."""

    @property
    @abstractmethod
    def space(self) -> Space:
        """Where attacks on it move."""

    @abstractmethod
    def describe(self) -> str:
        """What is allowed, as a clause of a sentence."""

    @abstractmethod
    def perturbation_size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(N,) how much each image was changed, in the unit of ``eps`` where images tell it."""

    @abstractmethod
    def excess(self, x: Tensor, x_adv: Tensor, points: Tensor | None = None) -> Tensor:
        """(N,) how far outside the set each image is beyond rounding; 0 for members.

        ``points`` are the parameters that the images were made from, for parametric threats.
        """


class SearchSet(Threat):
    """A threat whose members attacks reach by moving the points themselves."""

    @property
    @abstractmethod
    def radius(self) -> float:
        """How far a point moves in a step of relative length one."""

    @abstractmethod
    def project(self, x: Tensor, x_adv: Tensor, scale: Tensor | None = None) -> Tensor:
        """The member that is nearest to ``x_adv``; ``scale`` (N,) enlarges each sample's set."""

    @abstractmethod
    def step_direction(self, x_t: Tensor, grad: Tensor) -> Tensor:
        """The direction of unit length that an iterative attack steps along."""

    @abstractmethod
    def random_start(self, x: Tensor, rng: SampleRNG, restart: int | Tensor = 0) -> Tensor:
        """A random member."""

    @abstractmethod
    def random_neighbor(
        self, x: Tensor, best: Tensor, fraction: Tensor, rng: SampleRNG, draw: Tensor
    ) -> Tensor:
        """A random member like ``best`` in all but a ``fraction`` (N,) of what may change.

        ``draw`` (N,) is the number of the draw, as in `SampleRNG`.
        """

    def random_point(self, x: Tensor, rng: SampleRNG, restart: int | Tensor = 0) -> Tensor:
        """The same before the projection onto [0, 1], where that makes a difference."""
        return self.random_start(x, rng, restart)

    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Lowest and highest values of the members where the set is a box."""
        return None

    def scale_into_ball(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """A member near ``x_adv`` that is cheaper than the nearest one, where there is such."""
        return self.project(x, x_adv)


# Entries may have `attack`: the attack where none is named, if it is not the ensemble `fast`.
THREATS: Registry[type[Threat]] = Registry("threat")


def find_kind(text: str) -> str | None:
    """The registered name of a kind of threat, norms in every usual spelling; None if unknown."""
    from buttress.threats.norm_ball import find_norm

    name = normalize_name(find_norm(text) or text)
    return next((known for known in THREATS.names() if normalize_name(known) == name), None)


def parse_kind(text: str) -> str:
    """The same; raises for what is no kind of threat."""
    if (kind := find_kind(text)) is None:
        raise UserError(
            f"the threat model must be one of {', '.join(THREATS.names())}, but got {text!r}"
        )
    return kind


def list_threats(tag: str | None = None) -> list[str]:
    return THREATS.names(tag)
