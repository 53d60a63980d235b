"""What may be asked of augmentation, and the names of common choices."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from buttress.errors import UnknownName
from buttress.registry import canonical, unknown
from buttress.spec import Spec

Probability = Annotated[float, Field(ge=0, le=1)]


def _ordered(ends: tuple[float, float]) -> tuple[float, float]:
    if not 0 < ends[0] <= ends[1]:
        raise ValueError(f"`0 < low <= high` must hold, but got low={ends[0]}, high={ends[1]}")
    return ends


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]


class ResizedCrop(Spec):
    """A random part of the image, enlarged to the whole."""

    scale: Range = (0.08, 1.0)  # share of the area
    ratio: Range = (3 / 4, 4 / 3)  # width by height
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"


class Jitter(Spec):
    """Factors from 1 - s to 1 + s; hue in turns of the colour circle."""

    brightness: NonNegativeFloat = 0.0
    contrast: NonNegativeFloat = 0.0
    saturation: NonNegativeFloat = 0.0
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0


class Rand(Spec):
    """RandAugment; the defaults are those of timm's ``rand-m9-mstd0.5-inc1``."""

    ops: PositiveInt = 2
    magnitude: Annotated[float, Field(ge=0, le=10)] = 9.0
    std: NonNegativeFloat = 0.5
    probability: Probability = 0.5  # that an operation which was drawn happens


def _jitter(raw: object) -> object:
    """A number stands for brightness, contrast and saturation alike; zero is off."""
    if not isinstance(raw, int | float) or isinstance(raw, bool):
        return raw
    return {"brightness": raw, "contrast": raw, "saturation": raw} if raw else None


class AugmentationSpec(Spec):
    """Random changes of the training images: fields, or one of `list_augmentations` by name."""

    crop: NonNegativeInt = 0  # pixels of padding around a random crop
    flip: bool = False
    resized_crop: ResizedCrop | None = None
    rotation: NonNegativeFloat = 0.0  # degrees, either way
    jitter: Annotated[Jitter | None, BeforeValidator(_jitter)] = None
    auto: Literal["none", "cifar10", "imagenet"] = "none"  # AutoAugment with this policy
    rand: Rand | None = None
    erasing: Probability = 0.0
    mixup: NonNegativeFloat = 0.0  # alpha; 0 is off
    cutmix: NonNegativeFloat = 0.0  # alpha; 0 is off

    @model_validator(mode="before")
    @classmethod
    def _expanded(cls, raw: object) -> object:
        return named_fields(raw) if isinstance(raw, str) else raw


class Named(NamedTuple):
    """A choice that has a name."""

    about: str
    fields: dict[str, Any]


_BASE: dict[str, Any] = {"resized_crop": {}, "flip": True, "jitter": 0.4}
_SWITCHES: dict[str, dict[str, Any]] = {
    "MixUp 0.8": {"mixup": 0.8},
    "CutMix 1.0": {"cutmix": 1.0},
    "RandAugment": {"rand": {}},
    "erasing 0.25": {"erasing": 0.25},
}


def _ablation(digits: tuple[int, ...]) -> Named:
    on = [word for word, digit in zip(_SWITCHES, digits, strict=True) if digit]
    fields = dict(_BASE)
    for word in on:
        fields |= _SWITCHES[word]
    return Named(", ".join(["resized crop, flip, jitter 0.4", *on]), fields)


# Each digit switches one of MixUp, CutMix, RandAugment and random erasing on: the ablation in
# Debenedetti's thesis that became arXiv:2209.07399.
NAMED = {
    "ablation-" + "".join(map(str, digits)): _ablation(digits)
    for digits in product((0, 1), repeat=4)
}


def list_augmentations() -> list[str]:
    """The names that stand for an augmentation in a recipe."""
    return list(NAMED)


def named_fields(name: str) -> dict[str, Any]:
    """The fields of `AugmentationSpec` that a name stands for."""
    known = {canonical(n): named.fields for n, named in NAMED.items()}
    if canonical(name) not in known:
        raise UnknownName(unknown("augmentation", name, list_augmentations()))
    return known[canonical(name)]
