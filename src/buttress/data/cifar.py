"""What CIFAR-10 and CIFAR-100 share: their archives, and the arrays that are kept of them.

Nothing from an archive is run or unpacked: its batches are read as plain arrays and kept in files
whose every byte is checked when they are opened.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from buttress.data.archives import ArraysOnly, check_md5, read_members
from buttress.data.cache import cache_dir, workspace
from buttress.data.core import NATURAL_BUDGETS, Dataset
from buttress.data.download import download, first_that_works
from buttress.data.pixels import MemoryPixels
from buttress.data.splits import rows_of, spread
from buttress.errors import CorruptFile, DataError, UserError
from buttress.files import read_json, replacing, write_json
from buttress.progress import Progress

Array = NDArray[np.uint8]
Arrays = dict[str, Array]
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
SUMS = "sums.json"
FIRST_TEST_ID = 50_000
VAL = 1_000


@dataclass(frozen=True)
class Cifar:
    """One of the two sets. ``sums`` are of the bytes of each array in the official order.

    Where they are not published they are taken from the archive, known by its MD5, and kept.
    """

    name: str
    url: str
    train: tuple[str, ...]  # batches in the official archive
    test: str
    label_key: bytes
    classes: tuple[str, ...]
    mean: tuple[float, float, float]  # of the 50,000 training images
    std: tuple[float, float, float]
    sums: Mapping[str, str] | None = None
    md5: str = ""

    @property
    def folder(self) -> Path:
        return cache_dir() / self.name

    @property
    def archive(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def get(self) -> str:
        return f"`buttress data get {self.name}`"


def get_cifar(
    cifar: Cifar, progress: Progress, copies: Mapping[str, Callable[[Path], Arrays]]
) -> Path:
    """Where the arrays lie, after getting them if they are not all there and whole.

    ``copies`` are further sources, given a folder to work in. Two processes may do this at once:
    each works in a folder of its own, and the files they move into place are equal.
    """
    folder = cifar.folder
    if is_whole(cifar):
        return folder
    with workspace(folder) as work:
        sources: dict[str, Callable[[], Arrays]] = {}
        if (folder / cifar.archive).is_file():
            sources["your archive"] = lambda: read_official(cifar, folder / cifar.archive)
        sources["official archive"] = lambda: read_official(
            cifar, download(cifar.url, work / cifar.archive, progress)
        )
        sources |= {name: partial(read, work) for name, read in copies.items()}
        checked = {name: partial(verified, cifar, read) for name, read in sources.items()}
        try:
            store(cifar, first_that_works(checked))
        except DataError as error:
            raise DataError(
                f"{cifar.name} could not be got ({error}); put {cifar.archive} into {folder} and "
                f"run {cifar.get}"
            ) from None
    return folder


def load_cifar(cifar: Cifar, split: str, image_size: int | None) -> Dataset:
    if image_size not in (None, 32):
        raise UserError(
            f"{cifar.name} images are 32x32, so image_size must be 32, but got {image_size}"
        )
    part = "test" if split == "test" else "train"
    images = torch.from_numpy(read_array(cifar, f"{part}_images").reshape(-1, 3, 32, 32))
    labels = torch.from_numpy(read_array(cifar, f"{part}_labels").reshape(-1).astype(np.int64))
    rows = torch.arange(len(labels))
    if part == "train":
        order = torch.tensor(spread(rows.tolist(), labels.tolist(), cifar.name))
        rows = rows_of(split, train=order[VAL:], val=order[:VAL], test=rows[:0])
    return Dataset(
        name=cifar.name,
        split=split,
        pixels=MemoryPixels(images).select(rows),
        labels=labels[rows],
        ids=rows + (FIRST_TEST_ID if part == "test" else 0),
        classes=cifar.classes,
        mean=cifar.mean,
        std=cifar.std,
        budgets=NATURAL_BUDGETS,
    )


def read_official(cifar: Cifar, path: Path) -> Arrays:
    if cifar.md5:
        check_md5(path, cifar.md5)
    files = read_members(path, (*cifar.train, cifar.test))
    train = [unpickle_batch(name, files[name], cifar.label_key) for name in cifar.train]
    test_images, test_labels = unpickle_batch(cifar.test, files[cifar.test], cifar.label_key)
    return {
        "train_images": np.concatenate([images for images, _ in train]),
        "train_labels": np.concatenate([labels for _, labels in train]),
        "test_images": test_images,
        "test_labels": test_labels,
    }


def unpickle_batch(name: str, content: bytes, label_key: bytes) -> tuple[Array, Array]:
    """Images and labels of one official batch."""
    try:
        batch = ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        images, labels = batch[b"data"], np.array(batch[label_key], dtype=np.uint8)
        if images.dtype != np.uint8:
            raise ValueError(f"its images are {images.dtype}, not uint8")
        return images.reshape(len(labels), 3, 32, 32), labels
    # A damaged pickle can raise nearly anything.
    except Exception as error:
        raise DataError(f"{name} is not a batch of CIFAR images: {error}") from None


def read_array(cifar: Cifar, name: str) -> Array:
    """One array of the cache, memory-mapped and checked byte for byte (about 0.1 s in all)."""
    path = cifar.folder / f"{name}.npy"
    if not path.exists():
        raise DataError(f"{cifar.name} is not on this machine; get it with {cifar.get}")
    try:
        # Copy on write: torch wants memory it may write to, and the file must never change.
        array: Array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OSError):
        raise DataError(
            f"{path} is truncated or unreadable; make it again with {cifar.get}"
        ) from None
    if array.dtype != np.uint8 or sha256(array) != known_sums(cifar)[name]:
        raise DataError(f"{path} does not match its checksum; make it again with {cifar.get}")
    return array


def known_sums(cifar: Cifar) -> Mapping[str, str]:
    if cifar.sums is not None:
        return cifar.sums
    path = cifar.folder / SUMS
    try:
        return read_json(path)
    except (CorruptFile, OSError):
        raise DataError(f"{path} is missing or damaged; make it again with {cifar.get}") from None


def is_whole(cifar: Cifar) -> bool:
    try:
        for name in ARRAYS:
            read_array(cifar, name)
    except DataError:
        return False
    return True


def verified(cifar: Cifar, read: Callable[[], Arrays]) -> Arrays:
    """What is read, if it is the set to the last byte, where its sums are published."""
    arrays = read()
    for name, expected in (cifar.sums or {}).items():
        if (found := sha256(arrays[name])) != expected:
            raise DataError(
                f"its {name} have the checksum {found[:12]}... in place of {expected[:12]}...; "
                "the download is damaged or is another data set"
            )
    return arrays


def store(cifar: Cifar, arrays: Arrays) -> None:
    for name, array in arrays.items():
        with replacing(cifar.folder / f"{name}.npy") as temporary, temporary.open("wb") as out:
            np.save(out, array, allow_pickle=False)
    if cifar.sums is None:
        write_json(cifar.folder / SUMS, {name: sha256(array) for name, array in arrays.items()})


def sha256(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
