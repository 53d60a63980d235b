"""Everything that is done to training images, in its order."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from torch import Tensor

from buttress.data.augment.auto import auto_augment
from buttress.data.augment.bits import like, to_bytes
from buttress.data.augment.crop import random_crop
from buttress.data.augment.erasing import random_erasing
from buttress.data.augment.flip import random_flip
from buttress.data.augment.geometry import random_rotation
from buttress.data.augment.jitter import colour_jitter
from buttress.data.augment.mixing import Mixed, mix_batch
from buttress.data.augment.rand import rand_augment
from buttress.data.augment.resized_crop import random_resized_crop
from buttress.records.augmentation import AugmentationSpec, Jitter, Rand, ResizedCrop
from buttress.streams import Streams


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images, in the order of the fields; each is off by default.

    Resized crops, jitter, AutoAugment and RandAugment work in 8 bits, as image libraries do: a
    float image is rounded to 256 levels there.
    """

    resized_crop: ResizedCrop | None = None
    crop: int = 0  # shifts by up to this many pixels, with black moving in
    flip: bool = False  # mirrors half of the images
    rotation: float = 0.0  # degrees, either way
    jitter: Jitter | None = None
    auto: Literal["none", "cifar10", "imagenet"] = "none"
    rand: Rand | None = None
    erasing: float = 0.0  # probability
    mixup: float = 0.0  # alpha
    cutmix: float = 0.0  # alpha

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        checked = AugmentationSpec.parse(given, "augmentation")
        for name in given:  # so that a number or a mapping may stand for a part of the spec
            object.__setattr__(self, name, getattr(checked, name))

    @classmethod
    def of(cls, spec: AugmentationSpec | str) -> Augmentation:
        """The augmentation that a recipe asks for, or one of `list_augmentations` by its name."""
        if isinstance(spec, str):
            spec = AugmentationSpec.parse(spec, "augmentation")
        return cls(**{field.name: getattr(spec, field.name) for field in fields(cls)})

    def __call__(self, x: Tensor, streams: Streams, epoch: int = 0) -> Tensor:
        """The batch ``x`` (N, C, H, W), uint8 or float, as epoch ``epoch`` sees it.

        The draw belongs to (seed, purpose, epoch, sample id): how samples are put into batches,
        and which worker has them, changes nothing.
        """
        streams = _of_epoch(streams, epoch)
        if not len(x):
            return x
        if self.resized_crop is not None:
            options = self.resized_crop.model_dump()
            x = like(random_resized_crop(to_bytes(x), streams, **options), x)
        if self.crop:
            x = random_crop(x, self.crop, streams)
        if self.flip:
            x = random_flip(x, streams)
        if self.rotation:
            x = random_rotation(x, self.rotation, streams)
        if self.jitter or self.auto != "none" or self.rand:
            x = like(self._change_levels(to_bytes(x), streams), x)
        return random_erasing(x, self.erasing, streams) if self.erasing else x

    def _change_levels(self, x: Tensor, streams: Streams) -> Tensor:
        if self.jitter is not None:
            x = colour_jitter(x, streams, **self.jitter.model_dump())
        if self.auto != "none":
            x = auto_augment(x, self.auto, streams)
        return x if self.rand is None else rand_augment(x, streams, **self.rand.model_dump())

    def mix(self, x: Tensor, streams: Streams, epoch: int = 0) -> Mixed:
        """The batch under MixUp or CutMix, and how labels mix: a function of the batch's ids."""
        return mix_batch(x, _of_epoch(streams, epoch), mixup=self.mixup, cutmix=self.cutmix)


def _of_epoch(streams: Streams, epoch: int) -> Streams:
    return replace(streams, purpose=f"{streams.purpose}/epoch {epoch}")
