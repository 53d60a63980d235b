from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from buttress.data import epoch_order, get_dataset, load_dataset, pixels, streamed
from buttress.data.folder_pixels import FolderPixels
from buttress.data.pixels import MemoryPixels
from buttress.errors import DataError


def write(path: Path, size: tuple[int, int] = (20, 20), level: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = np.random.default_rng(list(path.name.encode()))
    pixels = source.integers(0, 256, (*size[::-1], 3)).astype(np.uint8)
    if level is not None:
        pixels[:] = level
    Image.fromarray(pixels).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for part, count in (("train", 30), ("val", 4)):
        for name in ("ant", "bee", "cat"):
            for i in range(count):
                write(tmp_path / part / name / f"{i}.png")
    return tmp_path


def test_reads_both_parts(root: Path) -> None:
    train, val = load_dataset(f"folder:{root}", "train"), load_dataset(f"folder:{root}", "val")
    assert (len(train), len(val)) == (90, 12)
    assert train.classes == val.classes == ("ant", "bee", "cat")
    assert train.shape == (3, 20, 20)  # all images share one small size
    assert isinstance(train.pixels, MemoryPixels)
    assert np.allclose(train.mean, train.images.mean((0, 2, 3)), atol=1e-5)
    assert val.mean == train.mean
    assert len(load_dataset(f"folder:{root}", "train+val")) == 102
    assert get_dataset(f"folder:{root}") == root


def test_without_test_folder_test_means_val(root: Path) -> None:
    val = load_dataset(f"folder:{root}", "val")
    assert torch.equal(load_dataset(f"folder:{root}", "test").ids, val.ids)
    write(root / "test" / "bee" / "a.png")
    test = load_dataset(f"folder:{root}", "test")
    assert test.labels.tolist() == [1]


def test_ids_outlive_new_files_and_a_move(root: Path, tmp_path: Path) -> None:
    before = load_dataset(f"folder:{root}", "val")
    write(root / "val" / "ant" / "0000.png")
    after = load_dataset(f"folder:{root}", "val")
    assert set(before.ids.tolist()) < set(after.ids.tolist())
    assert after.ids.min() >= 0
    (root / "val" / "ant" / "0000.png").unlink()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for part in ("train", "val"):
        (root / part).rename(moved / part)
    again = load_dataset(f"folder:{moved}", "val")
    assert again.fingerprint() == before.fingerprint()


def test_the_first_images_are_of_all_classes(root: Path) -> None:
    assert set(load_dataset(f"folder:{root}", "train", limit=20).labels.tolist()) == {0, 1, 2}


def test_val_is_held_out_of_train_by_path(root: Path) -> None:
    for path in (root / "val").rglob("*.png"):
        path.unlink()
    for path in sorted((root / "val").rglob("*"), reverse=True):
        path.rmdir()
    (root / "val").rmdir()
    name = f"folder:{root}"
    train, val = load_dataset(name, "train"), load_dataset(name, "val")
    assert len(train) + len(val) == 90
    assert 3 <= len(val) <= 20
    assert torch.equal(load_dataset(name, "test").ids, val.ids)
    for i in range(20):
        write(root / "train" / "ant" / f"new{i}.png")
    assert set(val.ids.tolist()) <= set(load_dataset(name, "val").ids.tolist())
    assert set(train.ids.tolist()) <= set(load_dataset(name, "train").ids.tolist())


def test_a_tiny_set_still_has_one_image_held_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / "train" / name / "x.png")
        write(tmp_path / "train" / name / "deep" / "y.JPG")
        (tmp_path / "train" / name / "notes.txt").write_text("no image")
        (tmp_path / "train" / name / "._x.png").write_bytes(b"mac")
    assert len(load_dataset(f"folder:{tmp_path}", "val")) >= 1
    assert len(load_dataset(f"folder:{tmp_path}", "train+val")) == 4


def test_large_sets_stay_on_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_dataset(f"folder:{root}", "train")
    monkeypatch.setattr(streamed, "LARGEST_IN_MEMORY", 10 * 3 * 20 * 20)
    stream = load_dataset(f"folder:{root}", "train")
    assert isinstance(stream.pixels, FolderPixels)
    assert isinstance(load_dataset(f"folder:{root}", "train", limit=10).pixels, MemoryPixels)
    assert torch.equal(stream.images, whole.images)
    assert torch.equal(stream.select([5, 3]).images, whole.images[[5, 3]])
    first = stream.fingerprint()
    write(root / "train" / "ant" / "0.png", level=0)
    assert load_dataset(f"folder:{root}", "train").fingerprint() != first


def test_sizes_and_crop(root: Path) -> None:
    write(root / "train" / "ant" / "wide.png", (40, 20))
    name = f"folder:{root}"
    assert load_dataset(name, "val", limit=1).shape == (3, 224, 224)
    assert load_dataset(name, "val", image_size=10).shape == (3, 10, 10)
    striped = np.zeros((20, 60, 3), np.uint8)
    striped[:, 20:40] = 200
    Image.fromarray(striped).save(root / "striped.png")
    middle = streamed.read_image(root / "striped.png", 20)
    assert middle.shape == (3, 20, 20)
    assert (middle == 200).all()


def test_grey_and_palette_images_become_rgb(root: Path) -> None:
    for mode in ("L", "P", "RGBA", "CMYK"):
        ending = "jpg" if mode == "CMYK" else "png"
        Image.new(mode, (20, 20)).save(root / "val" / "ant" / f"{mode}.{ending}")
    assert load_dataset(f"folder:{root}", "val").shape == (3, 20, 20)
    Image.new("I;16", (20, 20), 40_000).save(root / "val" / "ant" / "deep.png")
    with pytest.raises(DataError, match=r"deep.png .*more than 8 bits"):
        load_dataset(f"folder:{root}", "val")


@pytest.mark.parametrize("damage", ["text", "cut", "empty"])
def test_a_damaged_image_is_named(root: Path, damage: str) -> None:
    path = root / "val" / "bee" / "2.png"
    whole = path.read_bytes()
    path.write_bytes({"text": b"hello", "cut": whole[: len(whole) // 2], "empty": b""}[damage])
    with pytest.raises(DataError, match=r"bee.2\.png must be an 8-bit image .* repair or remove"):
        load_dataset(f"folder:{root}", "val")


def test_layout_mistakes(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load_dataset(f"folder:{tmp_path / 'nowhere'}")
    empty = tmp_path / "empty"
    (empty / "stuff").mkdir(parents=True)
    with pytest.raises(DataError, match=r"must hold train/CLASS/IMAGE .* but holds stuff"):
        load_dataset(f"folder:{empty}")
    (empty / "train" / "ant").mkdir(parents=True)
    with pytest.raises(DataError, match="two or more classes, but holds only 'ant'"):
        load_dataset(f"folder:{empty}")
    (empty / "train" / "bee").mkdir()
    with pytest.raises(DataError, match=r"ant must hold images"):
        load_dataset(f"folder:{empty}")
    (root / "val" / "dog").mkdir()
    with pytest.raises(DataError, match="holds the class 'dog'"):
        load_dataset(f"folder:{root}", "val")


def test_only_val(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / "val" / name / "x.png", (8, 8))
    assert len(load_dataset(f"folder:{tmp_path}", "test")) == 2
    with pytest.raises(DataError, match=r"'train' needs .*train, but it does not exist"):
        load_dataset(f"folder:{tmp_path}", "train")


def test_a_large_set_is_never_held_in_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, batch = 128, 6
    one = 3 * size**2
    monkeypatch.setattr(streamed, "LARGEST_IN_MEMORY", 20 * one)
    monkeypatch.setattr(pixels, "VALUES_AT_ONCE", 4 * one)
    asked, take = [], FolderPixels.take

    def counted(self: FolderPixels, indices: torch.Tensor) -> torch.Tensor:
        asked.append(len(indices))
        return take(self, indices)

    monkeypatch.setattr(FolderPixels, "take", counted)
    tracemalloc.start()
    try:
        data = load_dataset(f"folder:{root}", "train", image_size=size)
        data.fingerprint()
        for epoch in range(2):
            for rows in epoch_order(len(data), 0, epoch).split(batch):
                data.take(rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data) * one > 20 * one
    assert max(asked) <= batch  # loading, statistics and training: never more than a batch
    assert peak < len(data) * one / 4
