"""What there is, in one table: every registered model with its cost and its published size."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, NamedTuple

from buttress.models.core import MODELS, Factory
from buttress.models.cost import cost_of
from buttress.registry import Entry

Category = Literal["cnn", "transformer", "hybrid"]
Size = Literal["published", "mini", "tiny"]

_cost = functools.cache(cost_of)  # a registered name stands for the same network all along


class Figure(NamedTuple):
    """A parameter count in print, in millions, beside ours for the same classes and image size."""

    printed: float
    ours: int
    num_classes: int
    image_size: int

    def __str__(self) -> str:
        return f"{self.printed:.2f}" if isinstance(self.printed, float) else str(self.printed)

    @property
    def difference(self) -> float:
        """Ours relative to the printed one; digits that the paper left out count as zero."""
        return self.ours / (self.printed * 1e6) - 1


@dataclass(frozen=True)
class Description:
    """A model at 32x32 with 10 classes."""

    name: str
    category: Category
    size: Size
    parameters: int
    macs: int  # per image, forward
    published: Figure | None
    paper: str
    tags: tuple[str, ...]
    about: str


def describe_models(tag: str | None = None) -> list[Description]:
    """Every registered model, or those with a tag; counted anew, nothing is typed in."""
    return [_describe(MODELS.entry(name)) for name in MODELS.names(tag)]


def published_figure(name: str) -> Figure | None:
    """The printed count of a model, if there is one, beside ours."""
    extra = MODELS.entry(name).extra
    if extra["published"] is None:
        return None
    shape = {"num_classes": 10, "image_size": 32, **extra.get("published_for", {})}
    return Figure(extra["published"], _cost(name, **shape).parameters, **shape)


def _describe(entry: Entry[Factory]) -> Description:
    cost = _cost(entry.name, num_classes=10, image_size=32)
    kinds: tuple[Category, ...] = ("cnn", "transformer", "hybrid")
    sizes: tuple[Size, ...] = ("published", "mini", "tiny")
    return Description(
        name=entry.name,
        category=next(kind for kind in kinds if kind in entry.tags),
        size=next(size for size in sizes if size in entry.tags),
        parameters=cost.parameters,
        macs=cost.macs,
        published=published_figure(entry.name),
        paper=entry.paper,
        tags=entry.tags,
        about=entry.about,
    )
