"""What a source is: it knows the names that are its own, and gives the model behind them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from buttress.errors import UserError
from buttress.models.factory import Shape
from buttress.records.run import Which
from buttress.registry import Registry

if TYPE_CHECKING:
    from buttress.models.core import Classifier

Values = Sequence[float] | float
USUAL: Shape = {"num_classes": 10, "image_size": 32, "in_channels": 3}
NAMED = "a registered name, timm:NAME or file.py:function"


@dataclass(frozen=True)
class Wanted:
    """What is said about a model beside its name; None is not said."""

    model: str | None = None
    num_classes: int | None = None
    image_size: int | None = None
    in_channels: int | None = None
    mean: Values | None = None
    std: Values | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    pretrained: bool = False
    which: Which = "best"  # epoch of a run
    usual: Shape = field(default_factory=lambda: USUAL)  # where neither user nor file knows

    def shape(self, known: Shape | None = None) -> dict[str, int]:
        """What was asked for, else what a file says, else what is usual."""
        return {**self.usual, **(known or {}), **self.said()}

    def said(self) -> dict[str, int]:
        """The parts of the shape that were asked for."""
        asked = {name: getattr(self, name) for name in self.usual}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def is_normalised(self) -> bool:
        return self.mean is not None or self.std is not None

    def refuse_model(self, what: str) -> None:
        """For what is a model already: another one cannot be put in its place."""
        if self.model is not None:
            raise UserError(f"{what} is a model itself; leave out model={self.model!r}")

    def refuse_all(self, what: str, shape: Shape) -> None:
        """For what knows its own model: whatever is said must agree with it."""
        words = ("model", "mean", "std", "options", "pretrained")
        if said := [word for word in words if getattr(self, word) not in (None, False, {})]:
            raise UserError(f"{what} knows its own model; give its path alone, without {said[0]}")
        for name, own in shape.items():
            asked = getattr(self, name)
            if asked is not None and asked != own:
                raise UserError(f"{what} has {name}={own}, but got {name}={asked}")


@dataclass(frozen=True)
class Trained:
    """Trained weights, and the model they belong to."""

    weights: Mapping[str, Tensor]
    place: str  # what messages call it
    model: str
    shape: Shape
    mean: Values | None = None
    std: Values | None = None
    is_normalised: bool = False  # by the user's own mean and std, which a file must not deny
    options: Mapping[str, Any] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()


class Source(ABC):
    """One way to name a model. Exactly one source reads a given name."""

    builds: ClassVar[bool] = False  # whether its names are architectures, for `create_model`

    @abstractmethod
    def reads(self, what: str) -> bool:
        """Whether a name is of this source, by its form and by what lies on the disk."""

    def build(self, name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
        """A network with fresh weights."""
        raise UserError(f"{name} is no architecture; name {NAMED}")

    @abstractmethod
    def open(self, what: str, wanted: Wanted) -> Trained | Classifier:
        """The trained weights and their model, or a model that is ready."""


SOURCES: Registry[type[Source]] = Registry("source")


def find_source(what: str, *, builds: bool = False) -> Source:
    """The source of a name; ``builds`` looks among architectures only. Plain names are ours."""
    for entry in SOURCES:
        source = entry.value()
        if (source.builds or not builds) and source.reads(what):
            return source
    return SOURCES.get("name")()


def is_function(name: str) -> bool:
    """Whether a name is written ``file.py:function``."""
    path, sep, _ = name.rpartition(":")
    return bool(sep) and path.endswith(".py")
