"""A data set under a corruption: the official images where they are there, else made when read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from buttress.data.core import Dataset
from buttress.data.corruptions.core import CORRUPTIONS, check_severity, corrupt
from buttress.data.corruptions.official import official_pixels
from buttress.data.pixels import Pixels, to_unit
from buttress.progress import Progress
from buttress.records.corruption import OFFICIAL

VERSION = 1  # goes up when the pixels of a corruption change


def corrupted(dataset: Dataset, name: str, severity: int, seed: int = 0) -> Dataset:
    """The same images, labels, ids, classes and budgets, under a corruption.

    For the test images of CIFAR-10, CIFAR-100 and ImageNet (at 224 pixels) these are the official
    arrays or files where the user has them (`find_official`); the name then ends in ``-official``
    and ``seed`` plays no part. Otherwise images are corrupted when they are read.
    """
    name = CORRUPTIONS.entry(name).name
    severity = check_severity(severity)
    called = f"{dataset.name}+{name}-{severity}"
    if (official := official_pixels(dataset, name, severity)) is not None:
        return replace(dataset, name=f"{called}{OFFICIAL}", pixels=official)
    made = CorruptedPixels(dataset.pixels, dataset.ids, name, severity, seed)
    return replace(dataset, name=called, pixels=made)


@dataclass(frozen=True, eq=False)
class CorruptedPixels:
    """Images of ``source``, corrupted when they are asked for."""

    source: Pixels
    ids: Tensor  # (N,)
    name: str
    severity: int
    seed: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.source.shape

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Tensor) -> Tensor:
        clean = to_unit(self.source.take(indices))
        if len(clean) == 0:
            return clean.to(torch.uint8)
        x = corrupt(clean, self.name, self.severity, self.ids[indices], self.seed)
        return x.mul_(255).round_().to(torch.uint8)

    def select(self, indices: Tensor) -> CorruptedPixels:
        return replace(self, source=self.source.select(indices), ids=self.ids[indices])

    def contents(self) -> Iterator[bytes]:
        yield f"{self.name} {self.severity} seed {self.seed} version {VERSION}\n".encode()
        yield from self.source.contents()

    def loaded(self, progress: Progress) -> CorruptedPixels:
        return replace(self, source=self.source.loaded(progress))
