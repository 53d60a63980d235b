"""Which images make the batches of an epoch, and which of them a process takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from buttress.data import Batch, Dataset, epoch_order
from buttress.data.mixed import Mixed


@dataclass(frozen=True)
class Piece:
    """The images of a batch that one process takes."""

    rows: Tensor  # (N,) positions in the data
    places: Tensor  # (N,) positions in the whole batch
    whole: int  # images in the whole batch

    def __len__(self) -> int:
        return len(self.rows)

    def split(self, parts: int) -> list[Piece]:
        """Pieces of about the same size that pass one after the other."""
        pairs = zip(self.rows.tensor_split(parts), self.places.tensor_split(parts), strict=True)
        return [Piece(rows, places, self.whole) for rows, places in pairs if len(rows)]


@dataclass(frozen=True)
class Batches:
    """Training images, in an order that belongs to (seed, epoch)."""

    data: Dataset
    batch_size: int
    seed: int
    mixed: Mixed | None = None  # the data with extra images in every batch

    @property
    def images(self) -> int:
        """Real images: an epoch is one pass over them."""
        return len(self.data)

    def of(self, epoch: int) -> list[Tensor]:
        """The positions of each batch; what is left after the last whole batch waits."""
        if self.mixed is not None:
            whole = self.mixed.order(self.batch_size, self.seed, epoch)
        else:
            order = epoch_order(len(self.data), self.seed, epoch)
            whole = list(order.split(self.batch_size))
        return [rows for rows in whole if len(rows) == self.batch_size] or whole[:1]

    @cached_property
    def steps(self) -> int:
        return len(self.of(0))

    def piece(self, rows: Tensor, rank: int, processes: int) -> Piece:
        """What one of several processes takes: no two take the same image."""
        places = torch.arange(rank, len(rows), processes)
        return Piece(rows[places], places, len(rows))

    def take(self, rows: Tensor) -> Batch:
        return (self.data if self.mixed is None else self.mixed.data).take(rows)

    def first(self, count: int) -> Tensor:
        """Some images, to try a network on."""
        return self.data.take(torch.arange(min(count, len(self.data)))).x
