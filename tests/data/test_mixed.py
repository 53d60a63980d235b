from __future__ import annotations

import pickle

import pytest
import torch

from buttress.data import Dataset, MixedDataset, load_dataset, mixed_batches
from buttress.errors import UserError


def make(n: int, name: str, classes: int = 3, size: int = 4, first_id: int = 0) -> Dataset:
    source = torch.Generator().manual_seed(n)
    x = torch.randint(256, (n, 3, size, size), dtype=torch.uint8, generator=source)
    ids = torch.arange(n) + first_id
    names = [str(k) for k in range(classes)]
    return Dataset.from_arrays(x, torch.arange(n) % classes, ids=ids, name=name, classes=names)


@pytest.fixture
def mixed() -> MixedDataset:
    return MixedDataset(make(20, "real"), make(50, "extra"), ratio=0.7)


def test_each_real_image_comes_once_and_the_share_is_fixed() -> None:
    batches = mixed_batches(n_real=60, n_extra=1000, batch_size=20, ratio=0.7, seed=0, epoch=3)
    assert len(batches) == 10  # 60 real images, 6 in each batch
    assert all((len(b.real), len(b.extra)) == (6, 14) for b in batches)
    assert sorted(torch.cat([b.real for b in batches]).tolist()) == list(range(60))
    assert len(set(torch.cat([b.extra for b in batches]).tolist())) == 140


def test_the_last_batch_keeps_the_share() -> None:
    sizes = [(len(a), len(b)) for a, b in mixed_batches(63, 1000, 20, 0.7, 0, 0)]
    assert sizes[:-1] == [(6, 14)] * 10
    assert sizes[-1] == (3, 7)
    assert [len(b) for _, b in mixed_batches(10, 1000, 8, 0.0, 0, 0)] == [0, 0]


@pytest.mark.parametrize("n_extra", [5, 37, 140, 1000])
def test_the_extra_images_go_on_over_epochs(n_extra: int) -> None:
    epochs = [mixed_batches(60, n_extra, 20, 0.7, seed=1, epoch=e) for e in range(12)]
    drawn = torch.cat([b.extra for batches in epochs for b in batches])
    assert len(drawn) == 12 * 140
    whole = drawn[: len(drawn) // n_extra * n_extra].view(-1, n_extra)
    for turn in whole:  # each pass over the extra set is a permutation of it
        assert sorted(turn.tolist()) == list(range(n_extra))
    rest = drawn[whole.numel() :].tolist()
    assert len(set(rest)) == len(rest)
    if len(whole) > 1:
        assert not torch.equal(whole[0], whole[1])


def test_all_follows_from_seed_and_epoch() -> None:
    def rows(seed: int, epoch: int) -> list[list[int]]:
        batches = mixed_batches(60, 200, 20, 0.5, seed, epoch)
        return [[*a.tolist(), -1, *b.tolist()] for a, b in batches]

    torch.manual_seed(0)
    first = rows(0, 5)
    torch.manual_seed(1)
    assert rows(0, 5) == first
    assert len({str(rows(seed, epoch)) for seed in (0, 1) for epoch in (0, 5)}) == 4


def test_batches_hold_images_of_both(mixed: MixedDataset) -> None:
    assert len(mixed) == 20
    batches = list(mixed.batches(10, seed=0, epoch=0))
    assert len(batches) == 7
    ids = torch.cat([b.ids for b in batches])
    assert sorted(ids[ids >= 0].tolist()) == list(range(20))
    for x, y, row_ids in batches:
        for image, label, sample in zip(x, y.tolist(), row_ids.tolist(), strict=True):
            data, row = (mixed.real, sample) if sample >= 0 else (mixed.extra, -1 - sample)
            assert torch.equal(image, data.take([row]).x[0])
            assert label == data.labels[row]


def test_the_joined_set_is_a_data_set(mixed: MixedDataset) -> None:
    data = mixed.union
    assert data.name == "real+extra"
    assert (data.mean, data.classes) == (mixed.real.mean, mixed.real.classes)
    assert len(data) == 70 == len(set(data.ids.tolist()))
    assert torch.equal(data.images, torch.cat([mixed.real.images, mixed.extra.images]))
    some = data.select([30, 2, 69]).select([2, 0])
    assert torch.equal(some.images, data.take([69, 30]).x)
    again = pickle.loads(pickle.dumps(some))
    assert again.fingerprint() == some.fingerprint() != data.fingerprint()


def test_grey_levels_and_floats_mix() -> None:
    real = make(6, "real")
    extra = Dataset.from_arrays(make(9, "x").images, torch.zeros(9, dtype=torch.int64))
    data = MixedDataset(real, extra, 0.5).union
    assert torch.equal(data.images, torch.cat([real.images, extra.images]))


def test_what_cannot_be_mixed() -> None:
    real = make(20, "real")
    with pytest.raises(UserError, match=r"the same shape, but real has .* set image_size"):
        MixedDataset(real, make(9, "big", size=5), 0.5)
    with pytest.raises(
        UserError, match=r"must be in \[0, 2\] \(the classes of real\), but the largest is 8"
    ):
        MixedDataset(real, make(9, "many", classes=9), 0.5)
    with pytest.raises(UserError, match="non-negative"):
        MixedDataset(real, make(9, "negative", first_id=-3), 0.5)
    for ratio in (-0.1, 1.0):
        with pytest.raises(UserError, match="0 <= ratio < 1"):
            MixedDataset(real, real, ratio)
    with pytest.raises(UserError, match="gives 2 real and 0 extra; use a larger batch_size"):
        mixed_batches(20, 20, 2, 0.1, 0, 0)
    with pytest.raises(UserError, match="batch_size >= 1"):
        mixed_batches(20, 20, 0, 0.1, 0, 0)


def test_a_set_with_itself_has_no_equal_ids() -> None:
    digits = load_dataset("digits", "val")
    ids = MixedDataset(digits, digits, 0.5).union.ids
    assert len(ids.unique()) == 2 * len(digits)
