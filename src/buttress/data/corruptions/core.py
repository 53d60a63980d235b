"""Corruptions by name, and the function that applies them to a batch.

The constants of each severity are those of CIFAR-10-C for small images and those of ImageNet-C for
larger ones (Hendrycks and Dietterich, arXiv:1903.12261). Images are 8-bit before and after, as they
were when those sets were made. Random draws depend on the id of each sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from buttress.errors import UserError
from buttress.registry import Registry
from buttress.results.suite_spec import SEVERITIES
from buttress.system.rng import SampleRNG

# Values just below a level are rounded up to it: float64 errors are far smaller than this.
ROUNDING_EPSILON = 1e-6


def truncate_levels(values: Tensor) -> Tensor:
    """Values from 0 to 255 with their fractions cut off, as the published arrays have it."""
    return (values + ROUNDING_EPSILON).floor_()


def to_grayscale(x: Tensor) -> Tensor:
    """(N, 1, H, W) the luma of Rec. 601."""
    if x.shape[1] == 1:
        return x
    return 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


# Images (N, C, H, W) float64 in [0, 1], the constants of one severity, the noise of the samples.
Corruption = Callable[[Tensor, Any, SampleRNG], Tensor]
CORRUPTIONS: Registry[Corruption] = Registry("corruption")
CORRUPTIONS_PAPER = "arXiv:1903.12261"
MAX_SMALL_IMAGE = 64  # pixels: the constants of CIFAR-10-C up to here, of ImageNet-C above
MIN_IMAGE_SIZE = 8
MAX_VALUES_PER_CHUNK = 1 << 19  # of images in float64: 4 MiB


def corruption(
    *tags: str, small: tuple[Any, ...], large: tuple[Any, ...], **metadata: Any
) -> Callable[[Corruption], Corruption]:
    """Register a function with its constants of the five severities, by its own name.

    ``small`` are those of CIFAR-10-C, ``large`` those of ImageNet-C.
    """

    def decorate(function: Corruption) -> Corruption:
        constants: dict[str, Any] = {"small": small, "large": large, **metadata}
        name = function.__name__
        return CORRUPTIONS.register(name, paper=CORRUPTIONS_PAPER, tags=tags, **constants)(function)

    return decorate


def list_corruptions(tag: str | None = None) -> list[str]:
    """The names `corrupt` knows; tags are common, extra, noise, blur, weather and digital."""
    return CORRUPTIONS.names(tag)


def corrupt(x: Tensor, name: str, severity: int, ids: Tensor, seed: int = 0) -> Tensor:
    """Images (N, C, H, W) in [0, 1] under a corruption, in the 256 levels of 8-bit images.

    Args:
        x: color or gray images of at least 8 pixels; they are rounded to 256 levels first.
        name: one of `list_corruptions`.
        severity: 1 (mild) to 5.
        ids: (N,) of the samples; an image with an id gets the same noise in every batch.
        seed: of the noise.
    """
    entry = CORRUPTIONS.entry(name)
    _check_inputs(x, severity, ids)
    constants = severity_constants(entry.name, severity, (x.shape[2], x.shape[3]))
    streams = SampleRNG(seed, f"corruption {entry.name} {severity}", ids.detach().cpu().long())
    clean = x.detach().cpu()
    out = torch.empty(x.shape, dtype=torch.float32)
    for rows in torch.arange(len(x)).split(max(1, MAX_VALUES_PER_CHUNK // math.prod(x.shape[1:]))):
        piece = clean[rows].double().mul(255).round_() / 255
        changed = entry.value(piece, constants, streams.select(rows))
        out[rows] = truncate_levels(changed.clamp(0, 1) * 255).float().div_(255)
    return out.to(x.device, x.dtype)


def severity_constants(name: str, severity: int, size: tuple[int, int]) -> Any:
    """The constants of a severity for images of this height and width."""
    kind = "small" if max(size) <= MAX_SMALL_IMAGE else "large"
    return CORRUPTIONS.entry(name).metadata[kind][severity - 1]


def corruption_variant(name: str) -> str:
    """Return how this machine generates a corruption if it could do otherwise, else nothing."""
    variant = CORRUPTIONS.entry(name).metadata.get("variant")
    return "" if variant is None else str(variant())


def check_severity(severity: int) -> int:
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise UserError(f"severity must be an integer from 1 to 5, but got {severity!r}")
    return int(severity)


def _check_inputs(x: Tensor, severity: int, ids: Tensor) -> None:
    check_severity(severity)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or min(x.shape[2:]) < MIN_IMAGE_SIZE:
        raise UserError(
            "images must have shape (N, C, H, W) with 1 or 3 channels and at least "
            f"{MIN_IMAGE_SIZE} pixels each way, but got {tuple(x.shape)}"
        )
    if not x.is_floating_point() or bool((x < 0).any()) or not bool((x <= 1).all()):
        raise UserError(
            f"images must be floating point in [0, 1], but got {x.dtype} from "
            f"{x.min().item():.4g} to {x.max().item():.4g}"
        )
    if ids.shape != (len(x),):
        raise UserError(f"ids must have shape ({len(x)},), but got {tuple(ids.shape)}")
