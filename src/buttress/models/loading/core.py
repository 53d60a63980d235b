"""Base class of model sources: each recognizes its names and opens the model behind them."""

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
from buttress.results.training_images import TrainingImages

if TYPE_CHECKING:
    from buttress.models.core import Classifier

ChannelValues = Sequence[float] | float
DEFAULT_SHAPE: Shape = {"num_classes": 10, "image_size": 32, "in_channels": 3}
MODEL_NAME_FORMS = "a registered name, timm:NAME or file.py:function"


@dataclass(frozen=True)
class ModelRequest:
    """Options given for a model beside its name; None means not given."""

    model: str | None = None
    num_classes: int | None = None
    image_size: int | None = None
    in_channels: int | None = None
    mean: ChannelValues | None = None
    std: ChannelValues | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    pretrained: bool = False
    checkpoint: CheckpointName = "best"  # epoch of a run
    # Where neither the user nor the file gives one.
    default_shape: Shape = field(default_factory=lambda: DEFAULT_SHAPE)

    def shape(self, known: Shape | None = None) -> dict[str, int]:
        """The shape that was requested, else that of the file, else the default."""
        return {**self.default_shape, **(known or {}), **self.given_shape()}

    def given_shape(self) -> dict[str, int]:
        """The requested parts of the shape."""
        requested = {name: getattr(self, name) for name in self.default_shape}
        return {name: value for name, value in requested.items() if value is not None}

    @property
    def has_normalization(self) -> bool:
        return self.mean is not None or self.std is not None

    def normalization(
        self, mean: ChannelValues | None, std: ChannelValues | None
    ) -> tuple[ChannelValues | None, ChannelValues | None]:
        """The mean and std that were requested, else those of the file."""
        return (self.mean, self.std) if self.has_normalization else (mean, std)

    def reject_model_argument(self, label: str) -> None:
        """Raise `UserError` if ``model`` was given for a source that already defines its model."""
        if self.model is not None:
            raise UserError(f"{label} already defines its model; omit model={self.model!r}")

    def reject_conflicts(self, label: str, shape: Shape) -> None:
        """Raise `UserError` if the request contradicts the model that a source defines."""
        for option in ("model", "mean", "std", "options", "pretrained"):
            if getattr(self, option) not in (None, False, {}):
                raise UserError(f"{label} already defines its model; omit {option}")
        for name, expected in shape.items():
            requested = getattr(self, name)
            if requested is not None and requested != expected:
                raise UserError(f"{label} has {name}={expected}, but got {name}={requested}")


@dataclass(frozen=True)
class TrainedWeights:
    """Trained weights, and the model they belong to."""

    weights: Mapping[str, Tensor]
    source_name: str  # name used in messages
    model: str
    shape: Shape
    mean: ChannelValues | None = None
    std: ChannelValues | None = None
    keep_normalization: bool = False  # the user gave mean and std; a file must not contradict them
    options: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    training_images: TrainingImages | None = None  # where they are recorded


class ModelSource(ABC):
    """A kind of model name. Exactly one source matches a given name."""

    is_architecture: ClassVar[bool] = False  # whether `create_model` takes its names

    @abstractmethod
    def matches(self, name: str) -> bool:
        """Whether a name belongs to this source, by its form and by existing files."""

    def build(self, name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
        """Build the model with random weights."""
        raise UserError(f"{name} is not an architecture; use {MODEL_NAME_FORMS}")

    @abstractmethod
    def open(self, name: str, request: ModelRequest) -> TrainedWeights | Classifier:
        """Open the trained weights with their model, or a ready model."""


SOURCES: Registry[type[ModelSource]] = Registry("source")


def find_source(name: str, *, architectures_only: bool = False) -> ModelSource:
    """Find the source of a name; optionally among architectures only."""
    for entry in SOURCES:
        source = entry.value()
        if (source.is_architecture or not architectures_only) and source.matches(name):
            return source
    return SOURCES.get("name")()
