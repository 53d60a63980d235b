"""What a user passes to an evaluation: a model, and images in any usual form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from buttress.data import Dataset
from buttress.data.convert import as_dataset
from buttress.engine.checks import check_is_module, check_model_output
from buttress.models.eval_mode import eval_mode, to_model_device

if TYPE_CHECKING:
    from buttress.data.convert import DataLike


def load_images(model: nn.Module, data: DataLike, limit: int | None = None) -> Dataset:
    """The images to evaluate a model on.

    Where labels are the only source of the number of classes, it is that of the model: some
    classes may have no image.
    """
    check_is_module(model)
    images = as_dataset(data, limit=limit)
    if isinstance(data, (Dataset, str, Path)) or images.classes != _numbers(images.num_classes):
        return images
    x = to_model_device(model, images.take([0]).x)
    with eval_mode(model):
        num_classes = check_model_output(model, x, images.labels[:0]).shape[1]
    return replace(images, classes=_numbers(max(num_classes, images.num_classes)))


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))
