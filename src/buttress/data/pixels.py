"""Pixel storage of a dataset: in memory, or read from elsewhere on demand."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from buttress.system.progress import Progress

DEFAULT_CHUNK = 1024
MAX_VALUES_PER_CHUNK = 1 << 22  # of statistics: 32 MiB as float64
# A constant channel would otherwise be divided by zero when a model normalizes it.
MIN_STD = 1 / 255


class PixelSource(Protocol):
    """Images by position. `take` gives uint8, or float in [0, 1], of shape (n, C, H, W)."""

    @property
    def shape(self) -> tuple[int, int, int, int]: ...

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Tensor: ...

    def select(self, indices: Tensor) -> PixelSource:
        """Some of the images, in this order, without copying them."""

    def fingerprint_bytes(self) -> Iterator[bytes]:
        """What identifies the images, piece by piece, for a fingerprint."""

    def load_into_memory(self, progress: Progress) -> PixelSource:
        """The same images in memory, where they fit."""


@dataclass(frozen=True, eq=False)
class MemoryPixels:
    """Images in one tensor; ``rows`` chooses and orders some of them."""

    data: Tensor  # (M, C, H, W) uint8, or float in [0, 1]
    rows: Tensor | None = None  # (N,)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        _, channels, height, width = self.data.shape
        return len(self), channels, height, width

    def __len__(self) -> int:
        return len(self.data if self.rows is None else self.rows)

    def take(self, indices: Tensor) -> Tensor:
        rows = indices if self.rows is None else self.rows[indices]
        return self.data.index_select(0, rows)

    def select(self, indices: Tensor) -> MemoryPixels:
        return MemoryPixels(self.data, indices if self.rows is None else self.rows[indices])

    def fingerprint_bytes(self) -> Iterator[bytes]:
        yield str(self.data.dtype).encode()
        for chunk in iterate_indices(self):
            yield self.take(chunk).contiguous().numpy().tobytes()

    def load_into_memory(self, progress: Progress) -> MemoryPixels:
        return self


def iterate_indices(pixels: PixelSource, size: int = DEFAULT_CHUNK) -> Iterator[Tensor]:
    """All positions in order, a piece at a time."""
    yield from torch.arange(len(pixels)).split(size)


def to_float(x: Tensor) -> Tensor:
    """Images as float32 in [0, 1]: uint8 is divided by 255, floats are taken as they are."""
    return x.float().div_(255) if x.dtype == torch.uint8 else x.float()


class ChannelStats(NamedTuple):
    mean: tuple[float, ...]
    std: tuple[float, ...]


def channel_stats(pixels: PixelSource) -> ChannelStats:
    """Mean and standard deviation of each channel on the [0, 1] scale.

    Sums of uint8 images are whole numbers below 2^53, so the result is the same on every machine.
    """
    total = torch.zeros(pixels.shape[1], dtype=torch.float64)
    squares, count, scale = total.clone(), 0, 1
    size = MAX_VALUES_PER_CHUNK // math.prod(pixels.shape[1:])
    for chunk in iterate_indices(pixels, max(1, min(size, DEFAULT_CHUNK))):
        x = pixels.take(chunk)
        scale = 255 if x.dtype == torch.uint8 else 1
        x = x.double()
        total += x.sum((0, 2, 3))
        squares += x.square().sum((0, 2, 3))
        count += x[:, 0].numel()
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt() / scale
    return ChannelStats(tuple((mean / scale).tolist()), tuple(std.clamp_min(MIN_STD).tolist()))


HASH_BYTES = 8


def hash_images(pixels: PixelSource) -> NDArray[np.uint64] | None:
    """(N,) a hash of the pixels of each image; None where they are not in memory.

    Images of 8 bits have one hash as uint8 and as float.
    """
    if not isinstance(pixels, MemoryPixels):
        return None
    digests = bytearray()
    for chunk in iterate_indices(pixels):
        x = pixels.take(chunk)
        if x.dtype != torch.uint8:
            levels = (x * 255).round()
            x = levels.to(torch.uint8) if torch.equal(levels / 255, x.float()) else x.float()
        for image in x.contiguous().numpy():
            digests += hashlib.blake2b(image, digest_size=HASH_BYTES).digest()
    return np.frombuffer(bytes(digests), dtype="<u8").astype(np.uint64)
