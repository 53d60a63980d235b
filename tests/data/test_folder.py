from __future__ import annotations

import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from buttress.data import (
    Dataset,
    dataset_facts,
    download_dataset,
    epoch_permutation,
    load_dataset,
    pixels,
)
from buttress.data.core import CIFAR_BUDGETS, IMAGENET_BUDGETS
from buttress.data.pixels import MemoryPixels
from buttress.data.readers import images as streamed
from buttress.data.readers.folder import FolderPixels
from buttress.errors import DataError
from buttress.system.progress import SilentProgress


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
    assert download_dataset(f"folder:{root}") == root


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
    monkeypatch.setattr(streamed, "MAX_MEMORY_BYTES", 10 * 3 * 20 * 20)
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
    middle = streamed.decode_image(root / "striped.png", 20)
    assert middle.shape == (3, 20, 20)
    assert (middle == 200).all()


@pytest.mark.parametrize(("size", "budgets"), [(64, CIFAR_BUDGETS), (65, IMAGENET_BUDGETS)])
def test_budgets_are_those_of_the_image_size(
    root: Path, size: int, budgets: dict[str, float]
) -> None:
    assert load_dataset(f"folder:{root}", image_size=size).budgets == budgets
    assert dataset_facts(f"folder:{root}", size).budgets == budgets
    assert dataset_facts(f"folder:{root}", size).shape == (3, size, size)
    images = torch.zeros(2, 3, size, size)
    assert Dataset.from_arrays(images, torch.tensor([0, 1])).budgets == budgets


def test_grey_and_palette_images_become_rgb(root: Path) -> None:
    for mode in ("L", "P", "RGBA", "CMYK"):
        ending = "jpg" if mode == "CMYK" else "png"
        Image.new(mode, (20, 20)).save(root / "val" / "ant" / f"{mode}.{ending}")
    assert load_dataset(f"folder:{root}", "val").shape == (3, 20, 20)
    Image.new("F", (20, 20), 0.5).save(root / "val" / "ant" / "deep.tiff")
    with pytest.raises(DataError, match=r"deep.tiff .*more than 16 bits"):
        load_dataset(f"folder:{root}", "val")


@pytest.mark.parametrize(("deep", "level"), [(0, 0), (40_000, 156), (65_535, 255)])
def test_16_bits_are_scaled_to_8(tmp_path: Path, deep: int, level: int) -> None:
    Image.new("I;16", (4, 4), deep).save(tmp_path / "deep.png")
    assert (streamed.decode_image(tmp_path / "deep.png", 4) == level).all()


@pytest.mark.parametrize("mode", ["P", "LA", "1", "RGBA"])
def test_transparency_is_dropped_without_a_warning(tmp_path: Path, mode: str) -> None:
    image = Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode)
    how: dict[str, Any] = {"transparency": bytes([0, 10, 20])} if mode == "P" else {}
    image.save(tmp_path / "x.png", **how)
    assert (streamed.decode_image(tmp_path / "x.png", 4) == 255).all()


def test_photographs_are_upright(root: Path) -> None:
    """The camera notes how it was held: top row of the file, right column of the scene."""
    pixels = np.zeros((20, 20, 3), np.uint8)
    pixels[:10] = 255
    photo = Image.fromarray(pixels)
    turned = photo.getexif()
    turned[0x0112] = 6
    for part in ("train", "val"):
        for path in (root / part).rglob("*.png"):
            photo.save(path, exif=turned)
    image = load_dataset(f"folder:{root}", "val").images[0, 0]
    assert image[:, 10:].min() == 1
    assert image[:, :10].max() == 0
    assert (
        streamed.decode_image(path, 20)[0, :10] == 255
    ).all()  # named data sets stay as they are


@pytest.mark.parametrize("damage", ["text", "cut", "empty"])
def test_a_damaged_image_is_named(root: Path, damage: str) -> None:
    path = root / "val" / "bee" / "2.png"
    whole = path.read_bytes()
    path.write_bytes({"text": b"hello", "cut": whole[: len(whole) // 2], "empty": b""}[damage])
    with pytest.raises(
        DataError, match=r"bee.2\.png is not a readable .* image: .* repair or remove"
    ):
        load_dataset(f"folder:{root}", "val")


def test_damaged_images_are_counted(root: Path) -> None:
    for name in ("0", "1", "2"):
        (root / "train" / "ant" / f"{name}.png").write_bytes(b"no image")
    for split in ("train", "val"):
        with pytest.raises(DataError, match=r"^3 of \d+ images cannot be read, first: .*ant"):
            load_dataset(f"folder:{root}", split)


def test_a_link_to_nothing_is_named(root: Path) -> None:
    (root / "train" / "ant" / "gone.png").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"gone\.png is not a readable 8- or 16-bit image"):
        load_dataset(f"folder:{root}", "train")


def test_linked_folders_are_followed_once(root: Path, tmp_path: Path) -> None:
    plain = load_dataset(f"folder:{root}", "train")
    (root / "train" / "ant" / "ring").symlink_to("..", target_is_directory=True)
    elsewhere = tmp_path / "elsewhere"
    (root / "train" / "bee").rename(elsewhere)
    (root / "train" / "bee").symlink_to(elsewhere, target_is_directory=True)
    result = load_dataset(f"folder:{root}", "train")
    assert torch.equal(result.ids, plain.ids)
    assert torch.equal(result.labels, plain.labels)


ODD = ["a b", "ü", "<script>", "x'y\"z", "-n", "new\nline", "100%", "$HOME", "con.", "日本"]


@pytest.mark.parametrize("count", [2, 1000])
def test_any_number_of_classes_with_any_names(tmp_path: Path, count: int) -> None:
    names = sorted([*ODD, *(f"class {i}" for i in range(1000))][:count])
    write(tmp_path / "one.png", (4, 4))
    for name in names:
        for place in ("train/{}/deep/er", "val/{}"):
            folder = tmp_path / place.format(name)
            folder.mkdir(parents=True)
            (folder / "0.png").hardlink_to(tmp_path / "one.png")
    data = load_dataset(f"folder:{tmp_path}", "train")
    assert data.classes == tuple(names)
    assert sorted(data.labels.tolist()) == list(range(count))


def test_a_name_that_is_no_text_is_refused(root: Path) -> None:
    path = os.fsencode(root / "train" / "ant") + b"/\xff.png"
    try:
        with open(path, "wb") as file:
            file.write(b"")
    except OSError:
        pytest.skip("this disk takes no such names")
    with pytest.raises(DataError, match="not valid UTF-8; rename"):
        load_dataset(f"folder:{root}", "train")


class Heard(SilentProgress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def log(self, text: str) -> None:
        self.said.append(text)


def test_what_is_held_out_is_said(root: Path) -> None:
    shutil.rmtree(root / "val")
    shutil.rmtree(root / "test", ignore_errors=True)
    heard = Heard()
    data = load_dataset(f"folder:{root}", "test", progress=heard)
    every = len(load_dataset(f"folder:{root}", "train+val"))
    assert any("no test/" in text for text in heard.said)
    assert any(f"{len(data)} of its {every} training images" in text for text in heard.said)
    again = load_dataset(f"folder:{root}", "val")
    assert torch.equal(again.ids, data.ids)


def test_layout_mistakes(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load_dataset(f"folder:{tmp_path / 'nowhere'}")
    empty = tmp_path / "empty"
    (empty / "stuff").mkdir(parents=True)
    with pytest.raises(DataError, match=r"must contain train/CLASS/IMAGE .* but contains stuff"):
        load_dataset(f"folder:{empty}")
    (empty / "train" / "ant").mkdir(parents=True)
    with pytest.raises(DataError, match="at least two classes, but contains only 'ant'"):
        load_dataset(f"folder:{empty}")
    (empty / "train" / "bee").mkdir()
    with pytest.raises(DataError, match=r"ant must contain images"):
        load_dataset(f"folder:{empty}")
    (root / "val" / "dog").mkdir()
    with pytest.raises(DataError, match="contains the class 'dog'"):
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
    monkeypatch.setattr(streamed, "MAX_MEMORY_BYTES", 20 * one)
    monkeypatch.setattr(pixels, "MAX_VALUES_PER_CHUNK", 4 * one)
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
            for rows in epoch_permutation(len(data), 0, epoch).split(batch):
                data.take(rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data) * one > 20 * one
    assert max(asked) <= batch  # loading, statistics and training: never more than a batch
    assert peak < len(data) * one / 4
