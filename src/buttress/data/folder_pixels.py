"""Images in files of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from buttress.data.streamed import StreamedPixels, read_image


@dataclass(frozen=True, eq=False)
class FolderPixels(StreamedPixels):
    """Files under ``root``, each cut to a square of ``size`` pixels."""

    root: Path
    paths: tuple[str, ...]  # (N,) relative to root, with forward slashes
    size: int
    shorter: int | None = None  # what the shorter side is scaled to before the cut; else size
    upright: bool = False  # photographs are turned as their cameras noted

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, row: int) -> NDArray[np.uint8]:
        return read_image(
            self.root / self.paths[row], self.size, self.shorter, upright=self.upright
        )

    def select(self, indices: Tensor) -> FolderPixels:
        return replace(self, paths=tuple(self.paths[i] for i in indices.tolist()))

    def contents(self) -> Iterator[bytes]:
        if self.shorter is not None:
            yield f"shorter side {self.shorter}\n".encode()
        for path in self.paths:
            yield f"{path}\0{(self.root / path).stat().st_size}\n".encode(errors="surrogateescape")
