from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import buttress.data
from buttress.data import DATASETS, Dataset, download_dataset, list_datasets, load_dataset
from buttress.data.splits import stratified_order
from buttress.errors import UnknownNameError, UserError
from buttress.results.core import SPLITS
from buttress.threats.norm_ball import NORMS


@pytest.mark.usefixtures("small_copies")
@pytest.mark.parametrize("name", DATASETS.names())
class TestContract:
    def test_splits_are_apart_and_complete(self, name: str) -> None:
        ids = {split: set(load_dataset(name, split).ids.tolist()) for split in SPLITS}
        assert ids["train"] | ids["val"] == ids["train+val"]
        assert not ids["train"] & ids["val"]
        assert not ids["train+val"] & ids["test"]
        assert all(len(load_dataset(name, split)) == len(ids[split]) > 0 for split in SPLITS)

    @pytest.mark.parametrize("split", SPLITS)
    def test_images_and_labels(self, name: str, split: str) -> None:
        data = load_dataset(name, split)
        images = data.images
        assert images.dtype == torch.float32
        assert images.shape == (len(data), *data.shape)
        assert images.min() >= 0
        assert 0.5 < images.max() <= 1
        assert data.labels.dtype == data.ids.dtype == torch.int64
        assert data.labels.min() >= 0
        assert data.labels.max() < data.num_classes == len(data.classes)
        assert len(data.mean) == len(data.std) == data.shape[0]
        assert set(data.budgets) == set(NORMS)
        assert (data.name, data.split) == (name, split)

    def test_loading_again_gives_the_same(self, name: str) -> None:
        a, b = load_dataset(name, "val"), load_dataset(name, "val")
        assert torch.equal(a.images, b.images)
        assert a.fingerprint() == b.fingerprint()
        assert len({load_dataset(name, split).fingerprint() for split in SPLITS}) == len(SPLITS)

    def test_one_normalisation_for_all_splits(self, name: str) -> None:
        assert len({(d.mean, d.std) for d in (load_dataset(name, s) for s in SPLITS)}) == 1

    def test_limit_takes_the_first(self, name: str) -> None:
        data, few = load_dataset(name), load_dataset(name, limit=3)
        assert torch.equal(few.ids, data.ids[:3])
        assert torch.equal(few.images, data.images[:3])
        assert few.fingerprint() != data.fingerprint()

    def test_batches_cover_all_in_order(self, name: str) -> None:
        data = load_dataset(name)
        batches = list(data.batches(7))
        assert torch.equal(torch.cat([b.x for b in batches]), data.images)
        assert torch.equal(torch.cat([b.y for b in batches]), data.labels)
        assert torch.equal(torch.cat([b.ids for b in batches]), data.ids)

    def test_select_keeps_ids_and_composes(self, name: str) -> None:
        data = load_dataset(name)
        some = data.select([4, 2, 0]).select(torch.tensor([True, False, True]))
        assert torch.equal(some.ids, data.ids[[4, 0]])
        assert torch.equal(some.images, data.take([4, 0]).x)

    def test_changing_a_batch_changes_no_data(self, name: str) -> None:
        data = load_dataset(name)
        before = data.fingerprint()
        data.images.zero_()
        data.take([0, 1]).x.zero_()
        assert load_dataset(name).fingerprint() == before
        assert data.take([0, 1]).x.any()

    def test_survives_pickling(self, name: str) -> None:
        data = load_dataset(name, limit=5)
        again = pickle.loads(pickle.dumps(data))
        assert again.fingerprint() == data.fingerprint()

    def test_bad_requests(self, name: str) -> None:
        with pytest.raises(UserError, match=r"train, val, test, train\+val, but got 'tset'"):
            load_dataset(name, "tset")
        for limit in (0, -3):
            with pytest.raises(UserError, match=f"limit >= 1.*limit={limit}"):
                load_dataset(name, limit=limit)
        with pytest.raises(UserError, match=f"has {len(load_dataset(name))} images"):
            load_dataset(name, limit=10**6)
        with pytest.raises(UserError, match="image_size"):
            load_dataset(name, image_size=7)
        with pytest.raises(UserError, match="image_size"):
            load_dataset(name, image_size=0)

    def test_getting_it_again_finishes(self, name: str) -> None:
        assert download_dataset(name).exists()


def test_lists_and_unknown_names(tmp_path: Path) -> None:
    imagenets = {"imagenet", "imagenet-100", "imagenet-rb5000", "imagenette", "imagenette-160"}
    cifars = {"cifar10", "cifar100", "cifar10_sample"}
    others = {"digits", "caltech101", "flowers102", "tiny-imagenet"}
    assert set(list_datasets()) == imagenets | cifars | others
    assert list_datasets("bundled") == ["cifar10_sample", "digits"]
    with pytest.raises(UnknownNameError, match="did you mean 'cifar10'"):
        load_dataset("cifar_10x")
    with pytest.raises(UnknownNameError, match="unknown reader 'zip'"):
        load_dataset("zip:a")
    with pytest.raises(UserError, match=r"write folder:"):
        load_dataset(str(tmp_path))
    for name in ("folder", "folder:"):
        with pytest.raises(UserError, match="folder:PATH"):
            load_dataset(name)
    with pytest.raises(UserError, match="batch_size >= 1"):
        load_dataset("digits").batches(0)


def test_the_order_is_the_same_in_another_process() -> None:
    code = "from buttress.data import load_dataset as l; print(l('digits', 'val').fingerprint())"
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert out.stdout.strip() == load_dataset("digits", "val").fingerprint()


def test_every_beginning_of_a_spread_order_is_balanced() -> None:
    labels = [0] * 60 + [1] * 30 + [2] * 10
    order = stratified_order(list(range(100)), labels, "x")
    assert sorted(order) == list(range(100))
    assert order != stratified_order(list(range(100)), labels, "y")
    for n in (10, 20, 50):
        share = np.bincount([labels[p] for p in order[:n]], minlength=3) / n
        assert np.abs(share - [0.6, 0.3, 0.1]).max() <= 1 / n


def test_every_file_of_the_package_is_imported() -> None:
    folder = Path(buttress.data.__file__).parent
    files = {f"buttress.data.{p.stem}" for p in folder.glob("*.py") if p.stem != "__init__"}
    # Images in other forms and pictures in notebooks: imported where they are needed.
    late = {"buttress.data.convert", "buttress.data.thumbnails"}
    assert files - late <= set(sys.modules)


def test_fingerprint_notices_each_part() -> None:
    x, y = np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 0, 1])
    one = np.zeros_like(x)
    one[3, 0, 1, 1] = 1
    variants = [
        Dataset.from_arrays(x, y),
        Dataset.from_arrays(one, y),
        Dataset.from_arrays(x / 255, y),
        Dataset.from_arrays(x, 1 - y),
        Dataset.from_arrays(x, y, ids=[3, 2, 1, 0]),
        Dataset.from_arrays(x, y, name="other"),
        Dataset.from_arrays(x.reshape(4, 1, 1, 4), y),
    ]
    assert len({data.fingerprint() for data in variants}) == len(variants)
