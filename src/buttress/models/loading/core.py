"""What a source is: it knows the names that are its own, and gives the model behind them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from buttress.errors import UserError
from buttress.models.factory import Shape
from buttress.registry import Registry
from buttress.results.run import CheckpointName

if TYPE_CHECKING:
    from buttress.models.core import Classifier

ChannelValues = Sequence[float] | float
DEFAULT_SHAPE: Shape = {"num_classes": 10, "image_size": 32, "in_channels": 3}
MODEL_NAME_FORMS = "a registered name, timm:NAME or file.py:function"


@dataclass(frozen=True)
class ModelRequest:
    """What is said about a model beside its name; None is not said."""

    model: str | None = None
    num_classes: int | None = None
    image_size: int | None = None
    in_channels: int | None = None
    mean: ChannelValues | None = None
    std: ChannelValues | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    pretrained: bool = False
    checkpoint: CheckpointName = "best"  # epoch of a run
    default_shape: Shape = field(
        default_factory=lambda: DEFAULT_SHAPE
    )  # where neither user nor file knows

    def shape(self, known: Shape | None = None) -> dict[str, int]:
        """What was asked for, else what a file says, else what is usual."""
        return {**self.default_shape, **(known or {}), **self.given_shape()}

    def given_shape(self) -> dict[str, int]:
        """The parts of the shape that were asked for."""
        requested = {name: getattr(self, name) for name in self.default_shape}
        return {name: value for name, value in requested.items() if value is not None}

    @property
    def has_normalization(self) -> bool:
        return self.mean is not None or self.std is not None

    def reject_model_argument(self, label: str) -> None:
        """For what is a model already: another one cannot be put in its place."""
        if self.model is not None:
            raise UserError(f"{label} is a model itself; leave out model={self.model!r}")

    def reject_conflicts(self, label: str, shape: Shape) -> None:
        """For what knows its own model: whatever is said must agree with it."""
        option_names = ("model", "mean", "std", "options", "pretrained")
        if given_options := [
            word for word in option_names if getattr(self, word) not in (None, False, {})
        ]:
            raise UserError(
                f"{label} knows its own model; give its path alone, without {given_options[0]}"
            )
        for name, expected in shape.items():
            requested = getattr(self, name)
            if requested is not None and requested != expected:
                raise UserError(f"{label} has {name}={expected}, but got {name}={requested}")


@dataclass(frozen=True)
class TrainedWeights:
    """Trained weights, and the model they belong to."""

    weights: Mapping[str, Tensor]
    source_name: str  # what messages call it
    model: str
    shape: Shape
    mean: ChannelValues | None = None
    std: ChannelValues | None = None
    keep_normalization: bool = False  # by the user's own mean and std, which a file must not deny
    options: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class ModelSource(ABC):
    """One way to name a model. Exactly one source reads a given name."""

    is_architecture: ClassVar[bool] = (
        False  # whether its names are architectures, for `create_model`
    )

    @abstractmethod
    def matches(self, name: str) -> bool:
        """Whether a name is of this source, by its form and by what lies on the disk."""

    def build(self, name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
        """A network with fresh weights."""
        raise UserError(f"{name} is no architecture; name {MODEL_NAME_FORMS}")

    @abstractmethod
    def open(self, name: str, request: ModelRequest) -> TrainedWeights | Classifier:
        """The trained weights and their model, or a model that is ready."""


SOURCES: Registry[type[ModelSource]] = Registry("source")


def find_source(name: str, *, architectures_only: bool = False) -> ModelSource:
    """The source of a name, or only among architectures. Plain names are ours."""
    for entry in SOURCES:
        source = entry.value()
        if (source.is_architecture or not architectures_only) and source.matches(name):
            return source
    return SOURCES.get("name")()


def is_function_name(name: str) -> bool:
    """Whether a name is written ``file.py:function``."""
    path, sep, _ = name.rpartition(":")
    return bool(sep) and path.endswith(".py")
