"""Three quick corruptions in place of the real ones, to test suites and not corruptions."""

from __future__ import annotations

import types
from dataclasses import replace

import torch
from torch import Tensor

from buttress.data import Dataset
from buttress.data.pixels import MemoryPixels
from buttress.registry import Registry
from buttress.streams import Streams

NAMES = ("gaussian_noise", "fog", "contrast")


def corrupt(x: Tensor, name: str, severity: int, ids: Tensor, seed: int = 0) -> Tensor:
    """Noise that belongs to each sample, a grey veil, or less contrast; rounded to 8 bits."""
    if name == "gaussian_noise":
        x = x + 0.08 * severity * Streams(seed, name, ids).normal(x)
    elif name == "fog":
        x = torch.lerp(x, torch.ones_like(x), 0.15 * severity)
    else:
        x = torch.lerp(x, x.mean((1, 2, 3), keepdim=True).expand_as(x), 0.18 * severity)
    return (x.clamp(0, 1) * 255).round() / 255


def corrupted(data: Dataset, name: str, severity: int, seed: int = 0) -> Dataset:
    x = corrupt(data.images, name, severity, data.ids, seed)
    return replace(data, pixels=MemoryPixels((x * 255).round().to(torch.uint8)))


def stub() -> types.ModuleType:
    """What stands for ``buttress.data.corruptions``."""
    module = types.ModuleType("buttress.data.corruptions")
    registry: Registry[object] = Registry("corruption")
    for name in NAMES:
        registry.register(name, tags=("common",), about=name)(object())
    registry.register("spatter", tags=("extra",), about="not common")(object())
    vars(module).update(CORRUPTIONS=registry, corrupt=corrupt, corrupted=corrupted)
    return module
