"""Checks of user-supplied images, labels and ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from buttress.errors import UserError

MAX_CLASSES = 100_000


def as_tensor(values: Any, name: str) -> Tensor:
    """A CPU tensor of numbers from a numpy array, a tensor or a list."""
    if isinstance(values, Tensor):
        if values.layout is not torch.strided or values.is_meta or values.is_quantized:
            raise UserError(
                f"{name} must be a dense tensor, but got a sparse, quantized or meta tensor"
            )
        return values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise UserError(f"{name} must be an array of numbers: {error}") from None
    if array.dtype.kind not in "biuf":
        raise UserError(f"{name} must be an array of numbers, but got {array.dtype} values")
    if array.dtype == np.longdouble and array.dtype.itemsize > 8:  # torch has no such type
        array = array.astype(np.float64)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    # torch warns about memory it may not write to, and knows no negative strides.
    return torch.from_numpy(np.require(native, requirements=["C", "W"]))


def check_images(images: Any) -> Tensor:
    """(N, C, H, W) as uint8, or as float32 in [0, 1]."""
    x = as_tensor(images, "images")
    _check_shape(x)
    if x.dtype == torch.uint8:
        return x
    if not x.is_floating_point():
        raise UserError(
            f"images must be uint8 or floating point, but got {x.dtype}; convert 0..255 pixel "
            "values to uint8"
        )
    x = x.float()
    if not bool(x.isfinite().all()):
        bad = int((~x.isfinite()).flatten(1).any(1).sum())
        raise UserError(f"images must be finite, but {bad} of {len(x)} contain NaN or infinity")
    low, high = x.min().item(), x.max().item()
    if low < 0 or high > 1:
        remedy = "divide pixel values by 255"
        if low < 0:
            remedy = "make normalization the first layer of the model"
        raise UserError(f"images must be in [0, 1], but are in [{low:.4g}, {high:.4g}]; {remedy}")
    return x


def _check_shape(x: Tensor) -> None:
    check_image_shape(tuple(x.shape))
    if x.numel() == 0:
        raise UserError(f"there must be at least one image, but got shape {tuple(x.shape)}")


def check_image_shape(shape: tuple[int, ...]) -> None:
    """Raise unless the shape is (N, C, H, W); say how to get there."""
    is_channels_last = len(shape) == 4 and shape[3] in (1, 3, 4) and min(shape[1:3]) > shape[3]
    if is_channels_last and shape[1] not in (1, 3, 4):
        raise UserError(
            f"images must have shape (N, C, H, W), but {shape} looks like (N, H, W, C); "
            "use torch's permute(0, 3, 1, 2) or numpy's transpose(0, 3, 1, 2)"
        )
    if len(shape) != 4:
        is_one_image = len(shape) == 3 and shape[0] in (1, 3)
        remedy = "add the batch with images[None]" if is_one_image else ""
        if len(shape) == 3 and not is_one_image:
            remedy = "add the channel with images[:, None]"
        text = f"images must have shape (N, C, H, W), but got {shape}"
        raise UserError("; ".join(filter(None, (text, remedy))))


def check_labels(labels: Any, count: int, classes: int | None) -> Tensor:
    """(N,) int64 class numbers, within the classes if these are known."""
    y = as_tensor(labels, "labels")
    check_label_values(y, count)
    y = y.long()
    low, high = int(y.min()), int(y.max())
    if low < 0 or (classes is not None and high >= classes):
        valid_range = f"0 to {classes - 1}" if classes is not None else "0 or more"
        raise UserError(f"labels must be {valid_range}, but are in [{low}, {high}]")
    check_class_count(high + 1)
    return y


def is_integer(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def check_label_values(y: Tensor, count: int) -> None:
    """Raise unless the labels are ``count`` integers; say what to do with one-hot labels."""
    is_right_shape = y.shape == (count,)
    if is_right_shape and is_integer(y):
        return
    remedy = ""
    if y.ndim == 2 and len(y) == count and y.shape[1] > 1:
        remedy = "; pass y.argmax(1) if they are one-hot or probabilities"
    elif y.shape == (count, 1):
        remedy = "; pass y[:, 0]"
    elif is_right_shape:
        remedy = "; convert class numbers with y.long() (numpy: y.astype(int))"
    raise UserError(
        f"labels must be integers of shape ({count},), one class number per image, but got "
        f"{str(y.dtype).removeprefix('torch.')} of shape {tuple(y.shape)}{remedy}"
    )


def check_class_count(count: int) -> int:
    """Return the number of classes if it is plausible, else raise `UserError`."""
    if count > MAX_CLASSES:
        raise UserError(
            f"at most {MAX_CLASSES} classes are supported, but the largest label is {count - 1}"
        )
    return count


def check_ids(ids: Any, count: int) -> Tensor:
    """(N,) int64, each once; 0, 1, 2, ... if none are given."""
    if ids is None:
        return torch.arange(count)
    numbers = as_tensor(ids, "ids")
    if numbers.shape != (count,) or numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise UserError(
            f"ids must be one integer per image, shape ({count},), but got {numbers.dtype} of "
            f"shape {tuple(numbers.shape)}"
        )
    values, counts = numbers.long().unique(return_counts=True)
    if len(values) < count:
        repeated_id = int(values[counts > 1][0])
        raise UserError(f"ids must be unique, but {repeated_id} occurs more than once")
    return numbers.long()
