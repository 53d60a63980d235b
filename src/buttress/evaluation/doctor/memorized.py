"""Check on the tensors of a model: a copy of evaluated images is no knowledge of others."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from buttress.evaluation.doctor.core import CHECKS, ModelUnderTest, make_finding
from buttress.results.diagnosis import Finding

MIN_CORRELATION = 0.999  # of the pixels, per channel: of other mean and std, or rounded to 8 bits
MIN_STD = 1e-3  # of a channel; flat ones are alike everywhere
ROWS = 4096  # of a tensor at once


@CHECKS.register("memorized_images", tags=("model",))
def memorized_images(subject: ModelUnderTest) -> Finding | None:
    """The model holds some of the evaluated images in its tensors."""
    shape = tuple(subject.x.shape[1:])
    images, is_flat = _standardized(subject.x.flatten(1), shape)
    is_held = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    for rows in _image_rows(subject.model, shape):
        for part in rows.split(ROWS):
            found, _ = _standardized(part.to(images), shape)
            is_held |= (images @ found.T / math.prod(shape) > MIN_CORRELATION).any(1)
    held = int((is_held & ~is_flat).sum())
    if not held:
        return None
    return make_finding(
        memorized_images,
        "untrustworthy",
        f"tensors of the model hold {held} of the {len(images)} checked images: accuracy on images "
        "that a model holds says little about others",
        "evaluate on images that the model does not hold",
        {"images": len(images), "memorized": held},
    )


def _image_rows(model: nn.Module, shape: tuple[int, ...]) -> Iterator[Tensor]:
    """(M, C H W) every tensor of a model whose rows or columns have the size of an image."""
    size = math.prod(shape)
    for module in model.modules():
        values = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
        for value in values:
            if not isinstance(value, Tensor) or value.numel() < size or value.is_complex():
                continue
            tensor = value.detach()
            if tensor.numel() == size:
                yield tensor.reshape(1, size)
            elif math.prod(tensor.shape[1:]) == size:
                yield tensor.flatten(1)
            elif tensor.ndim == 2 and tensor.shape[0] == size:
                yield tensor.T


def _standardized(rows: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(M, C H W) rows with mean 0 and std 1 per channel; (M,) which have a flat channel."""
    channels = rows.view(len(rows), shape[0], -1)
    std = channels.std(2, correction=0, keepdim=True)
    standard = (channels - channels.mean(2, keepdim=True)) / std.clamp_min(MIN_STD)
    return standard.flatten(1), (std < MIN_STD).flatten(1).any(1)
