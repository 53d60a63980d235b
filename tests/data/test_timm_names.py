from __future__ import annotations

import importlib.machinery
import io
import json
import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from buttress.data import download_dataset, load_dataset
from buttress.data.readers import images as streamed
from buttress.data.readers import tar as tar_pixels
from buttress.data.readers.tar import TarPixels
from buttress.errors import DataError, UserError
from small_sets import jpeg, tar


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def samples(first: int, count: int, ending: str = "jpg") -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for i in range(first, first + count):
        files[f"{i:06}.cls"] = str(i % 3).encode()
        files[f"{i:06}.{ending}"] = jpeg(f"image {i}", (20, 20))
        files[f"{i:06}.json"] = b"{}"
    return files


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    root = tmp_path / "shards"
    for number in range(3):
        tar(root / f"set-train-{number:04}.tar", samples(10 * number, 10))
    tar(root / "set-validation-0000.tar", samples(100, 6, "png"))
    return root


def test_reads_shards_of_webdataset(shards: Path) -> None:
    train, val = load_dataset(f"timm:wds@{shards}", "train"), load_dataset(f"timm:wds@{shards}")
    assert (len(train), len(val)) == (30, 6)
    assert train.classes == ("0", "1", "2")
    assert train.shape == (3, 20, 20)
    assert len(set(train.ids.tolist()) | set(val.ids.tolist())) == 36
    result = {
        image.tobytes(): int(y)
        for image, y in zip((train.images * 255).round().byte().numpy(), train.labels, strict=True)
    }
    for i in range(30):
        with Image.open(io.BytesIO(jpeg(f"image {i}", (20, 20)))) as image:
            assert result[np.asarray(image).transpose(2, 0, 1).tobytes()] == i % 3
    assert download_dataset(f"timm:wds@{shards}") == shards
    assert load_dataset(f"timm:wds/set@{shards}").ids.tolist() == val.ids.tolist()
    assert load_dataset(f"timm:wds/{shards}").ids.tolist() == val.ids.tolist()


def test_shards_stream_by_key(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_dataset(f"timm:wds@{shards}", "train")
    monkeypatch.setattr(streamed, "MAX_MEMORY_BYTES", 0)
    stream = load_dataset(f"timm:wds@{shards}", "train")
    assert isinstance(stream.pixels, TarPixels)
    assert torch.equal(stream.images, whole.images)
    assert torch.equal(stream.select([7, 3]).images, whole.images[[7, 3]])
    assert pickle.loads(pickle.dumps(stream)).fingerprint() == stream.fingerprint()
    assert load_dataset(f"timm:wds@{shards}", image_size=8).shape == (3, 8, 8)


def test_the_index_is_read_once(shards: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_dataset(f"timm:wds@{shards}").fingerprint()
    seen: list[Path] = []
    scan = tar_pixels.scan_webdataset

    def noted(path: Path) -> Any:
        seen.append(path)
        return scan(path)

    monkeypatch.setattr(tar_pixels, "scan_webdataset", noted)
    assert load_dataset(f"timm:wds@{shards}").fingerprint() == before
    assert seen == []
    os.utime(shards / "set-train-0001.tar", (1, 1))
    next(iter((cache / "shards").iterdir())).write_text("{")
    load_dataset(f"timm:wds@{shards}")
    assert 1 <= len(seen) <= 2


def test_ids_outlive_a_move_and_new_shards(shards: Path, tmp_path: Path) -> None:
    before = load_dataset(f"timm:wds@{shards}", "train")
    moved = shards.rename(tmp_path / "elsewhere")
    assert load_dataset(f"timm:wds@{moved}", "train").fingerprint() == before.fingerprint()
    tar(moved / "set-train-0003.tar", samples(40, 4))
    assert set(before.ids.tolist()) < set(load_dataset(f"timm:wds@{moved}", "train").ids.tolist())


def test_parts_from_the_info_file_or_held_out(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    tar(root / "00000.tar", samples(0, 60))
    tar(root / "00001.tar", samples(60, 6))
    name = f"timm:wds@{root}"
    train, val = load_dataset(name, "train"), load_dataset(name, "val")
    assert len(train) + len(val) == 66
    assert not set(train.ids.tolist()) & set(val.ids.tolist())
    splits = {"train": {"filenames": ["00000.tar"]}, "test": {"filenames": ["00001.tar"]}}
    (root / "_info.json").write_text(json.dumps({"splits": splits}))
    assert len(load_dataset(name, "test")) == 6
    assert len(load_dataset(name, "train+val")) == 60
    splits["test"]["filenames"] = ["7.tar"]
    (root / "_info.json").write_text(json.dumps({"splits": splits}))
    with pytest.raises(DataError, match=r"lists 7\.tar, but that file does not exist"):
        load_dataset(name)
    (root / "_info.json").write_text("[]")
    with pytest.raises(DataError, match="must list the filenames of each of the splits"):
        load_dataset(name)


def test_shards_with_mistakes(shards: Path, tmp_path: Path) -> None:
    name = f"timm:wds@{shards}"
    path = tar(shards / "set-train-0009.tar", {"a.jpg": jpeg("a")})
    with pytest.raises(DataError, match=r"a class number in a\.cls, but there is none"):
        load_dataset(name)
    tar(path, {"a.jpg": jpeg("a"), "a.cls": b"dog"})
    with pytest.raises(DataError, match="but there is 'dog'"):
        load_dataset(name)
    tar(path, {"a.jpg": jpeg("a"), "a.png": jpeg("a"), "a.cls": b"1"})
    with pytest.raises(DataError, match="one image for each key, but a has two"):
        load_dataset(name)
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(DataError, match=r"must be a complete, uncompressed tar file"):
        load_dataset(name)
    tar(path, {"a.jpg": jpeg("a")[:200], "a.cls": b"1"})
    with pytest.raises(
        DataError,
        match=r"the image at byte 512 of .*0009\.tar is not a readable 8- or 16-bit image",
    ):
        load_dataset(name, "train")
    path.rename(shards / "other.tar")
    with pytest.raises(DataError, match=r"must contain train, val or test, but other\.tar"):
        load_dataset(name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"must contain \.tar files, but contains none"):
        load_dataset(f"timm:wds@{tmp_path / 'empty'}")
    with pytest.raises(DataError, match=r"must be a folder with \.tar files"):
        load_dataset(f"timm:wds@{tmp_path / 'nowhere'}")


@pytest.mark.parametrize("layout", ["one", "per class"])
def test_tar_files_with_class_folders(tmp_path: Path, layout: str) -> None:
    for part, count in (("train", 5), ("val", 2)):
        files = {
            f"{k}/{i}.jpg": jpeg(f"{part}{k}{i}", (20, 20)) for k in "ab" for i in range(count)
        }
        if layout == "one":
            tar(tmp_path / f"{part}.tar", files)
        for k in "ab" if layout == "per class" else "":
            mine = {name[2:]: content for name, content in files.items() if name[0] == k}
            tar(tmp_path / part / f"{k}.tar", mine)
    data = load_dataset(f"timm:tar@{tmp_path}", "train")
    assert data.classes == ("a", "b")
    assert data.labels.bincount().tolist() == [5, 5]
    assert len(load_dataset(f"timm:tar@{tmp_path}")) == 4
    tar(tmp_path / "val" / "c.tar", {"x/c/1.jpg": jpeg("c")})
    with pytest.raises(DataError, match="contain the class 'c', which train does not have"):
        load_dataset(f"timm:tar@{tmp_path}")


def test_folders_are_those_of_the_other_reader(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / part / name).mkdir(parents=True)
            (tmp_path / part / name / "1.jpg").write_bytes(jpeg(name, (20, 20)))
    ours, same = load_dataset(f"folder:{tmp_path}"), load_dataset(f"timm:folder@{tmp_path}")
    assert torch.equal(ours.ids, same.ids)


def test_names_that_cannot_be_read() -> None:
    with pytest.raises(UserError, match=r"one of wds, tar, folder, hfds.*streaming-only"):
        load_dataset("timm:tfds/mnist")
    with pytest.raises(UserError, match="is written timm:wds@PATH"):
        load_dataset("timm:wds")
    with pytest.raises(UserError, match="timm:hfds/NAME"):
        load_dataset("timm:hfds@x")


class Table:
    """What this reader uses of a data set of Hugging Face."""

    def __init__(self, rows: list[dict[str, Any]], features: dict[str, Any]) -> None:
        self.rows, self.features = rows, features
        self.info = types.SimpleNamespace(version="1.0.0")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self.rows] if isinstance(key, str) else self.rows[key]

    def cast_column(self, name: str, kind: Any) -> Table:
        assert not kind.decode
        return self


class HFImage:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class ClassLabel:
    names = ("cat", "dog")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Table]:
    """A package `datasets` with one data set."""
    features = {"img": HFImage(), "label": ClassLabel()}
    (tmp_path / "lone.jpg").write_bytes(jpeg("train 3", (20, 20)))

    def rows(part: str, count: int) -> list[dict[str, Any]]:
        cells = [{"bytes": jpeg(f"{part} {i}", (20, 20)), "path": None} for i in range(count)]
        return [{"img": cell, "label": i % 2} for i, cell in enumerate(cells)]

    tables = {p: Table(rows(p, n), features) for p, n in (("train", 40), ("validation", 6))}
    tables["train"].rows[3]["img"] = {"bytes": None, "path": str(tmp_path / "lone.jpg")}
    tables["test"] = Table([{**row, "label": -1} for row in rows("test", 5)], features)

    def load(name: str, split: str, cache_dir: str | None) -> Table:
        return tables[split]

    def names(name: str) -> list[str]:
        if name != "me/pets":
            raise FileNotFoundError("no such data set")
        return list(tables)

    module = types.ModuleType("datasets")
    module.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
    vars(module).update(
        Image=HFImage, ClassLabel=ClassLabel, load_dataset=load, get_dataset_split_names=names
    )
    monkeypatch.setitem(sys.modules, "datasets", module)
    return tables


def test_reads_data_sets_of_hugging_face(hub: dict[str, Table]) -> None:
    train, test = load_dataset("timm:hfds/me/pets", "train"), load_dataset("timm:hfds/me/pets")
    assert (len(train), len(test)) == (40, 6)  # the labels of its test split are secret
    assert train.classes == ("cat", "dog")
    assert train.shape == (3, 20, 20)
    assert torch.equal(test.ids, load_dataset("timm:hfds/me/pets@/cache", "val").ids)
    del hub["validation"]
    val = load_dataset("timm:hfds/me/pets", "val")
    assert set(val.ids.tolist()) < set(train.ids.tolist())
    with pytest.raises(
        DataError, match="Hugging Face dataset me/cars could not be loaded: no such data set"
    ):
        load_dataset("timm:hfds/me/cars")
    hub["train"].features.pop("label")
    with pytest.raises(DataError, match="one of class labels, but has img"):
        load_dataset("timm:hfds/me/pets")


def test_hugging_face_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="install it with `pip install datasets`"):
        load_dataset("timm:hfds/me/pets")
