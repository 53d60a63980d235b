"""The augmentation pipeline of training images, in the order in which it is applied."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from torch import Tensor

from buttress.data.augment.color import match_dtype, to_uint8
from buttress.data.augment.crops import random_crop, random_flip, random_resized_crop
from buttress.data.augment.erasing import random_erasing
from buttress.data.augment.geometry import random_rotation
from buttress.data.augment.mixing import MixedBatch, mix_batch
from buttress.data.augment.operations import color_jitter
from buttress.data.augment.policies import auto_augment, rand_augment
from buttress.results.run_spec import (
    AugmentationSpec,
    ColorJitterSpec,
    RandAugmentSpec,
    ResizedCropSpec,
)
from buttress.system.rng import SampleRNG


@dataclass(frozen=True)
class Augmentation:
    """Augmentations, applied in the order of the fields; each is off by default.

    Resized crops, jitter, AutoAugment and RandAugment work in 8 bits, as image libraries do: a
    float image is rounded to 256 levels there.
    """

    resized_crop: ResizedCropSpec | None = None
    crop_padding: int = 0  # shifts by up to this many pixels, with black moving in
    horizontal_flip: bool = False  # mirrors half of the images
    rotation: float = 0.0  # degrees, either way
    color_jitter: ColorJitterSpec | None = None
    auto_augment: Literal["none", "cifar10", "imagenet"] = "none"
    rand_augment: RandAugmentSpec | None = None
    random_erasing: float = 0.0  # probability
    mixup: float = 0.0  # alpha
    cutmix: float = 0.0  # alpha

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        checked = AugmentationSpec.parse(values, "augmentation")
        for name in values:  # a number or a mapping may replace a part of the spec
            object.__setattr__(self, name, getattr(checked, name))

    @classmethod
    def from_spec(cls, spec: AugmentationSpec | str) -> Augmentation:
        """Build the augmentation of a recipe, or one of `list_augmentations` by its name."""
        if isinstance(spec, str):
            spec = AugmentationSpec.parse(spec, "augmentation")
        return cls(**{field.name: getattr(spec, field.name) for field in fields(cls)})

    def __call__(self, x: Tensor, streams: SampleRNG, epoch: int = 0) -> Tensor:
        """Augment the batch ``x`` (N, C, H, W), uint8 or float, for epoch ``epoch``.

        The draw depends on (seed, purpose, epoch, sample id) only: how samples are batched,
        and which worker loads them, has no effect.
        """
        streams = _epoch_streams(streams, epoch)
        if not len(x):
            return x
        if self.resized_crop is not None:
            options = self.resized_crop.model_dump()
            x = match_dtype(random_resized_crop(to_uint8(x), streams, **options), x)
        if self.crop_padding:
            x = random_crop(x, self.crop_padding, streams)
        if self.horizontal_flip:
            x = random_flip(x, streams)
        if self.rotation:
            x = random_rotation(x, self.rotation, streams)
        if self.color_jitter or self.auto_augment != "none" or self.rand_augment:
            x = match_dtype(self._adjust_colors(to_uint8(x), streams), x)
        return random_erasing(x, self.random_erasing, streams) if self.random_erasing else x

    def _adjust_colors(self, x: Tensor, streams: SampleRNG) -> Tensor:
        if self.color_jitter is not None:
            x = color_jitter(x, streams, **self.color_jitter.model_dump())
        if self.auto_augment != "none":
            x = auto_augment(x, self.auto_augment, streams)
        if self.rand_augment is not None:
            x = rand_augment(x, streams, **self.rand_augment.model_dump())
        return x

    def mix(self, x: Tensor, streams: SampleRNG, epoch: int = 0) -> MixedBatch:
        """Apply MixUp or CutMix to a batch; the draw is a function of the batch's sample ids."""
        return mix_batch(x, _epoch_streams(streams, epoch), mixup=self.mixup, cutmix=self.cutmix)


def _epoch_streams(streams: SampleRNG, epoch: int) -> SampleRNG:
    return replace(streams, purpose=f"{streams.purpose}/epoch {epoch}")
