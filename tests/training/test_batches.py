"""Which images make a batch, and which of them a process takes."""

from __future__ import annotations

import torch

from buttress.data import Dataset, MixedDataset
from buttress.training.sampler import BatchSampler


def some(n: int, name: str = "some") -> Dataset:
    return Dataset.from_arrays(torch.rand(n, 3, 8, 8), torch.arange(n) % 4, name=name)


def test_processes_share_every_batch_without_overlap() -> None:
    batches = BatchSampler(some(70), 16, seed=3)
    for rows in batches.epoch_batches(2):
        pieces = [batches.shard(rows, rank, 3) for rank in range(3)]
        assert sorted(torch.cat([p.indices for p in pieces]).tolist()) == sorted(rows.tolist())
        assert sorted(torch.cat([p.batch_positions for p in pieces]).tolist()) == list(range(16))
        assert all(torch.equal(rows[p.batch_positions], p.indices) for p in pieces)
        assert {p.batch_size for p in pieces} == {16}


def test_an_epoch_is_whole_batches_in_an_order_of_its_own() -> None:
    batches = BatchSampler(some(70), 16, seed=3)
    first, again, next_one = (
        batches.epoch_batches(0),
        batches.epoch_batches(0),
        batches.epoch_batches(1),
    )
    assert [len(rows) for rows in first] == [16] * 4
    assert len(torch.cat(first).unique()) == 64
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], next_one[0])
    assert [len(rows) for rows in BatchSampler(some(5), 16, seed=3).epoch_batches(0)] == [5]


def test_extra_images_are_a_fixed_part_of_every_batch() -> None:
    real, extra = some(40), some(100, "extra")
    batches = BatchSampler(real, 16, seed=0, mixed_dataset=MixedDataset(real, extra, 0.5))
    seen = []
    for rows in batches.epoch_batches(0):
        ids = batches.load(rows).ids
        assert int((ids < 0).sum()) == 8, "extra images have negative ids"
        seen += ids[ids >= 0].tolist()
    assert len(seen) == len(set(seen)) == 40


def test_pieces_are_split_evenly() -> None:
    piece = BatchSampler(some(64), 16, seed=0).shard(torch.arange(16), 1, 2)
    parts = piece.split(3)
    assert [len(p) for p in parts] == [3, 3, 2]
    assert torch.cat([p.indices for p in parts]).tolist() == list(range(1, 16, 2))
