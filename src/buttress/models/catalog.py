"""Table of all registered models with their cost and published parameter counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from buttress.models.core import MODELS, Factory
from buttress.models.cost import model_cost
from buttress.models.variants import ModelCategory
from buttress.registry import RegistryEntry

VariantSize = Literal["published", "mini", "tiny"]


class PublishedSize(NamedTuple):
    """Published parameter count in millions, and ours for the same classes and image size."""

    published_millions: float
    parameters: int
    num_classes: int
    image_size: int

    def __str__(self) -> str:
        millions = self.published_millions
        return f"{millions:.2f}" if isinstance(millions, float) else str(millions)

    @property
    def relative_difference(self) -> float:
        """Relative difference of our count to the published one; omitted digits count as zero."""
        return self.parameters / (self.published_millions * 1e6) - 1


@dataclass(frozen=True)
class ModelDescription:
    """A model at 32x32 with 10 classes."""

    name: str
    category: ModelCategory
    size: VariantSize
    parameters: int
    macs: int  # per image, forward
    published: PublishedSize | None
    paper: str
    tags: tuple[str, ...]
    about: str


def describe_models(tag: str | None = None) -> list[ModelDescription]:
    """Describe every registered model, or those with a tag; all costs are computed."""
    return [_describe(MODELS.entry(name)) for name in MODELS.names(tag)]


def published_size(name: str) -> PublishedSize | None:
    """Return the published parameter count of a model beside ours, if there is one."""
    extra = MODELS.entry(name).metadata
    if extra["published"] is None:
        return None
    input_shape = {"num_classes": 10, "image_size": 32, **extra.get("published_shape", {})}
    return PublishedSize(
        extra["published"], model_cost(name, **input_shape).parameters, **input_shape
    )


def _describe(entry: RegistryEntry[Factory]) -> ModelDescription:
    cost = model_cost(entry.name, num_classes=10, image_size=32)
    categories: tuple[ModelCategory, ...] = ("cnn", "transformer", "hybrid")
    sizes: tuple[VariantSize, ...] = ("published", "mini", "tiny")
    return ModelDescription(
        name=entry.name,
        category=next(kind for kind in categories if kind in entry.tags),
        size=next(size for size in sizes if size in entry.tags),
        parameters=cost.parameters,
        macs=cost.macs,
        published=published_size(entry.name),
        paper=entry.paper,
        tags=entry.tags,
        about=entry.summary,
    )
