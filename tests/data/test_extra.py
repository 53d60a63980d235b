from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from buttress.data import MixedDataset, load_dataset
from buttress.errors import DataError, UserError

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3)).astype(np.uint8)
CLASSES = np.arange(40) % 10


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def dump(path: Path, value: Any, protocol: int = 4) -> str:
    path.write_bytes(pickle.dumps(value, protocol))
    return f"ti500k:{path}"


@pytest.fixture(params=["npz", "npz compressed", "ti500k"])
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "ti500k":
        more = {"ti_index": np.arange(40), "prediction_model": "x/y.pt", "epoch": np.int64(3)}
        content = {"data": IMAGES, "extrapolated_targets": CLASSES, **more}
        return dump(tmp_path / "ti_500K_pseudo_labeled.pickle", content)
    save = np.savez_compressed if "compressed" in request.param else np.savez
    save(tmp_path / "1m.npz", image=IMAGES, label=CLASSES)
    return f"npz:{tmp_path / '1m.npz'}"


def test_reads_images_and_labels(name: str) -> None:
    data = load_dataset(name, "train")
    assert data.shape == (3, 32, 32)
    assert data.num_classes == 10
    assert data.ids.tolist() == list(range(40))
    assert data.labels.tolist() == CLASSES.tolist()
    expected = torch.from_numpy(IMAGES).permute(0, 3, 1, 2)
    assert torch.equal((data.images * 255).round().byte(), expected)
    assert torch.equal(data.take([3, 1]).x, data.images[[3, 1]])
    assert np.allclose(data.mean, IMAGES.mean((0, 1, 2)) / 255, atol=1e-6)
    assert load_dataset(name, "train+val").fingerprint() == data.fingerprint()


def test_is_written_once_and_again_when_the_file_changes(name: str, cache: Path) -> None:
    load_dataset(name, "train")
    first = list((cache / "extra").iterdir())
    load_dataset(name, "train", limit=3)
    assert list((cache / "extra").iterdir()) == first
    path = Path(name.partition(":")[2])
    os.utime(path, (1, 1))
    load_dataset(name, "train")
    assert len(list((cache / "extra").iterdir())) == 2


def test_the_pixels_are_mapped_and_the_file_never_changes(name: str, cache: Path) -> None:
    data = load_dataset(name, "train")
    kept = next((cache / "extra").rglob("images.npy"))
    before = kept.read_bytes()
    data.images.zero_()
    data.take([0]).x.zero_()
    assert kept.read_bytes() == before
    assert data.images.any()


def test_has_training_images_only(name: str) -> None:
    for split in ("val", "test"):
        with pytest.raises(UserError, match=f"train split only, but got split='{split}'"):
            load_dataset(name, split)
    with pytest.raises(UserError, match="images of 32x32 pixels, but got image_size=16"):
        load_dataset(name, "train", image_size=16)


def test_mixes_with_a_labelled_set(name: str) -> None:
    mixed = MixedDataset(load_dataset("digits", "val"), load_dataset(name, "train"), 0.8)
    batch = next(iter(mixed.batches(50, seed=0, epoch=0)))
    assert batch.x.shape == (50, 3, 32, 32)
    assert int((batch.ids < 0).sum()) == 40


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_named_and_leaves_nothing(name: str, share: float, cache: Path) -> None:
    path = Path(name.partition(":")[2])
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataError, match=f"{path.name} is not a complete"):
        load_dataset(name, "train")
    assert not list((cache / "extra").iterdir())


def test_files_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with pytest.raises(DataError, match="does not exist"):
        load_dataset(f"npz:{path}", "train")
    np.savez(path, images=IMAGES, label=CLASSES)
    with pytest.raises(
        DataError, match="must contain `image` and `label`, but contains images, label"
    ):
        load_dataset(f"npz:{path}", "train")
    np.savez(path, image=IMAGES / 255, label=CLASSES)
    with pytest.raises(DataError, match=r"uint8 of shape \(N, H, W, 3\), but has float64"):
        load_dataset(f"npz:{path}", "train")
    np.savez(path, image=np.array([{}], dtype=object), label=CLASSES)
    with pytest.raises(DataError, match="not a complete"):
        load_dataset(f"npz:{path}", "train")
    np.savez(path, image=IMAGES, label=CLASSES[:3])
    with pytest.raises(UserError, match="one class number per image"):
        load_dataset(f"npz:{path}", "train")


class Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploited",)


def test_pickles_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.pickle"
    for protocol in (3, 4, 5):
        with pytest.raises(
            DataError, match=r"not a complete pickle of arrays: .* only numpy arrays"
        ):
            load_dataset(dump(path, {"data": Exploit()}, protocol), "train")
    assert not (tmp_path / "exploited").exists()
    for value in ({"data": IMAGES}, [1, 2], IMAGES):
        with pytest.raises(DataError, match="must contain `data` and `extrapolated_targets`"):
            load_dataset(dump(path, value), "train")
    with pytest.raises(UserError, match="labels must be 0 to 9"):
        load_dataset(dump(path, {"data": IMAGES, "extrapolated_targets": CLASSES + 1}), "train")
