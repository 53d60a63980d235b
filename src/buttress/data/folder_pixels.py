"""Images that stay in their files and are decoded when they are asked for."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from buttress.data.pixels import MemoryPixels, Pixels, chunks
from buttress.errors import DataError
from buttress.progress import Progress

LARGEST_IN_MEMORY = 1 << 30  # bytes of uint8 pixels
THREADS = min(8, os.cpu_count() or 1)  # Pillow decodes without holding the interpreter
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)


@dataclass(frozen=True, eq=False)
class FolderPixels:
    """Files under ``root``, each cut to a square of ``size`` pixels."""

    root: Path
    paths: tuple[str, ...]  # (N,) relative to root, with forward slashes
    size: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.paths), 3, self.size, self.size

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: Tensor) -> Tensor:
        paths = [self.root / self.paths[i] for i in indices.tolist()]
        out = np.empty((len(paths), 3, self.size, self.size), dtype=np.uint8)
        with ThreadPoolExecutor(THREADS) as pool:
            for row, image in enumerate(pool.map(self._read, paths)):
                out[row] = image
        return torch.from_numpy(out)

    def _read(self, path: Path) -> NDArray[np.uint8]:
        return read_image(path, self.size)

    def select(self, indices: Tensor) -> FolderPixels:
        return replace(self, paths=tuple(self.paths[i] for i in indices.tolist()))

    def contents(self) -> Iterator[bytes]:
        for path in self.paths:
            yield f"{path}\0{(self.root / path).stat().st_size}\n".encode()

    def loaded(self, progress: Progress) -> Pixels:
        if len(self) * 3 * self.size**2 > LARGEST_IN_MEMORY:
            return self
        out = torch.empty(self.shape, dtype=torch.uint8)
        task = progress.task(f"decode {self.root.name}", len(self))
        try:
            for rows in chunks(self, 256):
                out[rows] = self.take(rows)
                task.advance(len(rows))
        finally:
            task.close()
        return MemoryPixels(out)


def read_image(path: Path, size: int) -> NDArray[np.uint8]:
    """(3, size, size): the shorter side is scaled to ``size``, then the middle is cut out."""
    try:
        with Image.open(path) as image:
            if image.mode == "F" or image.mode.startswith("I"):
                raise ValueError(f"it has more than 8 bits per channel (mode {image.mode})")
            rgb = image.convert("RGB")
    except DAMAGE as error:
        raise DataError(unreadable(path, error)) from None
    if rgb.size != (size, size):
        rgb = ImageOps.fit(rgb, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(rgb).transpose(2, 0, 1)


def read_size(path: Path) -> tuple[int, int]:
    """Width and height, without decoding."""
    try:
        with Image.open(path) as image:
            return image.size
    except DAMAGE as error:
        raise DataError(unreadable(path, error)) from None


def unreadable(path: Path, error: Exception) -> str:
    return f"{path} must be an 8-bit image that Pillow can read, but: {error}; repair or remove it"
