"""Training batches with a fixed fraction of extra images (arXiv:1905.13736).

An epoch is one pass over the real images. The extra set is usually larger: its images come in a
random order that continues from epoch to epoch, and a new order begins when all have been seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from buttress.data.core import Batch, Dataset
from buttress.data.pixels import PixelSource, to_float
from buttress.errors import UserError
from buttress.system.progress import Progress
from buttress.system.rng import make_generator


def epoch_permutation(n: int, seed: int, epoch: int) -> Tensor:
    """A permutation of 0..n-1 that belongs to (seed, epoch): resuming needs no stored state."""
    return torch.randperm(n, generator=make_generator("order", seed, epoch))


class MixedIndices(NamedTuple):
    """One batch: positions in the real set and in the extra set."""

    real: Tensor
    extra: Tensor


def mixed_batches(
    n_real: int, n_extra: int, batch_size: int, ratio: float, seed: int, epoch: int
) -> list[MixedIndices]:
    """The batches of an epoch, of which the share ``ratio`` is extra.

    Each real image comes once. All follows from (seed, epoch): resuming needs no stored state. The
    last batch has the real images that are left, and extra ones in proportion.
    """
    num_extra_per_batch = extra_per_batch(batch_size, ratio)
    num_real_per_batch = batch_size - num_extra_per_batch
    real = epoch_permutation(n_real, seed, epoch).split(num_real_per_batch)
    counts = [round(len(rows) * num_extra_per_batch / num_real_per_batch) for rows in real]
    first = epoch * sum(counts)
    extra = repeated_permutation(n_extra, seed, first, first + sum(counts)).split(counts)
    return [MixedIndices(a, b) for a, b in zip(real, extra, strict=True)]


def extra_per_batch(batch_size: int, ratio: float) -> int:
    if batch_size < 1:
        raise UserError(f"`batch_size >= 1` must hold, but got batch_size={batch_size}")
    if not 0 <= ratio < 1:
        raise UserError(f"`0 <= ratio < 1` must hold, but got ratio={ratio}")
    extra = round(batch_size * ratio)
    if extra == batch_size or (ratio > 0 and extra == 0):
        raise UserError(
            f"each batch needs real and extra images, but ratio={ratio} of "
            f"batch_size={batch_size} gives {batch_size - extra} real and {extra} extra; use "
            "a larger batch_size"
        )
    return extra


def repeated_permutation(n: int, seed: int, start: int, stop: int) -> Tensor:
    """Places ``start`` to ``stop`` of a sequence of random orders of 0..n-1."""
    pieces = [torch.empty(0, dtype=torch.int64)]
    while start < stop:
        repeat, begin = divmod(start, n)
        end = min(n, begin + stop - start)
        order = torch.randperm(n, generator=make_generator("extra order", seed, repeat))
        pieces.append(order[begin:end])
        start += end - begin
    return torch.cat(pieces)


@dataclass(frozen=True, eq=False)
class MixedDataset:
    """A labeled set and an extra one; ``ratio`` is the share of each batch that is extra.

    Names, classes, mean, std and budgets are those of the real set. The extra image with id i has
    the id -1 - i here, so that no two ids are equal: those of datasets are 0 or more.
    """

    real: Dataset
    extra: Dataset
    ratio: float

    def __post_init__(self) -> None:
        extra_per_batch(1 << 30, self.ratio)
        if self.real.shape != self.extra.shape:
            raise UserError(
                f"real and extra images must have the same shape, but {self.real.name} has "
                f"{self.real.shape} and {self.extra.name} has {self.extra.shape}; set "
                "image_size"
            )
        if int(self.extra.labels.max()) >= self.real.num_classes:
            raise UserError(
                f"labels of {self.extra.name} must be in [0, {self.real.num_classes - 1}] "
                f"(the classes of {self.real.name}), but the largest is "
                f"{int(self.extra.labels.max())}"
            )
        if min(int(self.real.ids.min()), int(self.extra.ids.min())) < 0:
            raise UserError("ids must be non-negative in both datasets, but some are negative")

    def __len__(self) -> int:
        """Real images: the length of an epoch."""
        return len(self.real)

    @cached_property
    def union(self) -> Dataset:
        """Both sets as one: the real images first, then the extra ones."""
        return replace(
            self.real,
            name=f"{self.real.name}+{self.extra.name}",
            pixels=ConcatPixels(self.real.pixels, self.extra.pixels),
            labels=torch.cat([self.real.labels, self.extra.labels]),
            ids=torch.cat([self.real.ids, -1 - self.extra.ids]),
        )

    def epoch_batches(self, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
        """Positions in `union` of each batch of an epoch, the real images first."""
        n_real, n_extra = len(self.real), len(self.extra)
        batches = mixed_batches(n_real, n_extra, batch_size, self.ratio, seed, epoch)
        return [torch.cat([real, n_real + extra]) for real, extra in batches]

    def batches(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        return (self.union.take(rows) for rows in self.epoch_batches(batch_size, seed, epoch))


@dataclass(frozen=True, eq=False)
class ConcatPixels:
    """The images of two sets of one shape; ``rows`` chooses and orders some of them."""

    first: PixelSource
    second: PixelSource
    rows: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self), *self.first.shape[1:]

    def __len__(self) -> int:
        return len(self.first) + len(self.second) if self.rows is None else len(self.rows)

    def take(self, indices: Tensor) -> Tensor:
        rows = indices if self.rows is None else self.rows[indices]
        is_first = rows < len(self.first)
        a = self.first.take(rows[is_first])
        b = self.second.take(rows[~is_first] - len(self.first))
        if a.dtype != b.dtype:
            a, b = to_float(a), to_float(b)
        out = torch.empty((len(rows), *self.shape[1:]), dtype=a.dtype)
        out[is_first], out[~is_first] = a, b
        return out

    def select(self, indices: Tensor) -> ConcatPixels:
        return replace(self, rows=indices if self.rows is None else self.rows[indices])

    def fingerprint_bytes(self) -> Iterator[bytes]:
        yield from self.first.fingerprint_bytes()
        yield from self.second.fingerprint_bytes()
        if self.rows is not None:
            yield self.rows.contiguous().numpy().astype("<i8").tobytes()

    def load_into_memory(self, progress: Progress) -> ConcatPixels:
        first, second = (s.load_into_memory(progress) for s in (self.first, self.second))
        return replace(self, first=first, second=second)
