"""Batches of an epoch, and their sharding over processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from buttress.data import Batch, Dataset, epoch_permutation
from buttress.data.mixed import MixedDataset


@dataclass(frozen=True)
class BatchShard:
    """The shard of a batch of one process."""

    indices: Tensor  # (N,) positions in the data
    batch_positions: Tensor  # (N,) positions in the whole batch
    batch_size: int  # images in the whole batch

    def __len__(self) -> int:
        return len(self.indices)

    def split(self, num_parts: int) -> list[BatchShard]:
        """Split into micro-batches of about the same size."""
        pairs = zip(
            self.indices.tensor_split(num_parts),
            self.batch_positions.tensor_split(num_parts),
            strict=True,
        )
        return [BatchShard(rows, places, self.batch_size) for rows, places in pairs if len(rows)]


@dataclass(frozen=True)
class BatchSampler:
    """Batch sampler of training images; the order depends on (seed, epoch)."""

    data: Dataset
    batch_size: int
    seed: int
    mixed_dataset: MixedDataset | None = None  # the data with extra images in every batch

    @property
    def num_images(self) -> int:
        """Real images: an epoch is one pass over them."""
        return len(self.data)

    def epoch_batches(self, epoch: int) -> list[Tensor]:
        """Yield the positions of each batch; an incomplete last batch is dropped."""
        if self.mixed_dataset is not None:
            batches = self.mixed_dataset.epoch_batches(self.batch_size, self.seed, epoch)
        else:
            order = epoch_permutation(len(self.data), self.seed, epoch)
            batches = list(order.split(self.batch_size))
        return [rows for rows in batches if len(rows) == self.batch_size] or batches[:1]

    @cached_property
    def steps_per_epoch(self) -> int:
        return len(self.epoch_batches(0))

    def shard(self, indices: Tensor, rank: int, world_size: int) -> BatchShard:
        """Return the shard of one process; shards are disjoint."""
        batch_positions = torch.arange(rank, len(indices), world_size)
        return BatchShard(indices[batch_positions], batch_positions, len(indices))

    def load(self, indices: Tensor) -> Batch:
        return (self.data if self.mixed_dataset is None else self.mixed_dataset.union).take(indices)

    def first_images(self, count: int) -> Tensor:
        """Return a few images, to try a model on."""
        return self.data.take(torch.arange(min(count, len(self.data)))).x
