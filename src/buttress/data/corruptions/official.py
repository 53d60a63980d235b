"""The published corrupted images, where the user has them.

CIFAR-10-C and CIFAR-100-C: ``NAME.npy`` of (50000, 32, 32, 3) uint8, the 10,000 test images at
severity 1, then at severity 2 and so on, and ``labels.npy``; in ``CIFAR-10-C`` or ``CIFAR-100-C``.
ImageNet-C: ``NAME/SEVERITY/WNID/*.JPEG`` of 224 pixels, in ``ImageNet-C`` or the folder
``$BUTTRESS_IMAGENET_C``, also one level deeper, as its archives have it. These folders lie in the
cache, or in the folder of the clean set in the cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from buttress.data.cache import cache_dir
from buttress.data.cifar import FIRST_TEST_ID
from buttress.data.core import Dataset
from buttress.data.folder import file_at
from buttress.data.folder_pixels import FolderPixels
from buttress.data.pixels import MemoryPixels, Pixels
from buttress.errors import DataError

ARRAYS = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}
FOLDERS = {"imagenet": "ImageNet-C", "imagenet-100": "ImageNet-C", "imagenet-rb5000": "ImageNet-C"}
VARIABLE = "BUTTRESS_IMAGENET_C"
SIZE = 224  # of ImageNet-C: scaling its images again would change them
IMAGES = 10_000  # of one severity in an array


def find_official(dataset: str, name: str) -> Path | None:
    """The array file or the folder of a corruption of a data set, if it is on this machine."""
    for place in _places(dataset):
        if dataset in ARRAYS and (place / f"{name}.npy").is_file():
            return place / f"{name}.npy"
        if dataset in FOLDERS:
            for folder in (place / name, *sorted(place.glob(f"*/{name}"))):
                if folder.is_dir():
                    return folder
    return None


def _places(dataset: str) -> Iterator[Path]:
    called = ARRAYS.get(dataset) or FOLDERS.get(dataset)
    if called is None:
        return
    if dataset in FOLDERS and (own := os.environ.get(VARIABLE)):
        yield Path(own).expanduser()
    for folder in (cache_dir(), cache_dir() / dataset):
        yield from (folder / called, folder / called.lower())


def official_pixels(dataset: Dataset, name: str, severity: int) -> Pixels | None:
    """The official images of exactly these samples, or None where there are none."""
    if dataset.split != "test":
        return None
    place = find_official(dataset.name, name)
    if place is None:
        return None
    if dataset.name in ARRAYS:
        return _from_array(dataset, place, severity)
    if dataset.shape[1:] != (SIZE, SIZE):
        return None
    return _from_folder(dataset, place, severity)


def _from_array(dataset: Dataset, path: Path, severity: int) -> Pixels:
    images, labels = _read(path), _read(path.with_name("labels.npy"))
    first = (severity - 1) * IMAGES
    if images.shape != (5 * IMAGES, 32, 32, 3) or images.dtype != np.uint8:
        raise DataError(
            f"{path} must be uint8 of shape ({5 * IMAGES}, 32, 32, 3), but is {images.dtype} of "
            f"{images.shape}; get it again or remove it"
        )
    rows = dataset.ids - FIRST_TEST_ID
    here = torch.from_numpy(labels[first : first + IMAGES].astype(np.int64))
    if labels.shape != (5 * IMAGES,) or not torch.equal(here[rows], dataset.labels):
        raise DataError(
            f"{path.with_name('labels.npy')} must have the labels of {dataset.name}'s test images "
            "at each severity, but has others; get it again or remove the folder"
        )
    block = torch.from_numpy(images[first : first + IMAGES]).permute(0, 3, 1, 2)
    return OfficialPixels(MemoryPixels(block).select(rows))


def _read(path: Path) -> NDArray[np.uint8]:
    try:
        # Copy on write: torch wants memory it may write to, and the file must never change.
        array: NDArray[np.uint8] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}; get it again or remove it") from None
    return array


def _from_folder(dataset: Dataset, place: Path, severity: int) -> Pixels:
    """Files by the ids of the clean images, which are made of their paths below ``val``."""
    root = place / str(severity)
    paths = {}
    for file in root.glob("*/*"):
        path = f"{file.parent.name}/{file.name}"
        paths[file_at(f"val/{path}", 0).id] = path
    ids = dataset.ids.tolist()
    if missing := sum(i not in paths for i in ids):
        raise DataError(
            f"{root} must hold the corrupted form of each image of {dataset.name}, but lacks "
            f"{missing:,} of {len(ids):,}; get it again or remove {place}"
        )
    return OfficialPixels(FolderPixels(root, tuple(paths[i] for i in ids), SIZE))


@dataclass(frozen=True, eq=False)
class OfficialPixels:
    """Published images; a fingerprint tells them from our own."""

    source: Pixels

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.source.shape

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Tensor) -> Tensor:
        return self.source.take(indices).contiguous()

    def select(self, indices: Tensor) -> OfficialPixels:
        return replace(self, source=self.source.select(indices))

    def contents(self) -> Iterator[bytes]:
        yield b"official\n"
        yield from self.source.contents()

    def loaded(self, progress: object) -> OfficialPixels:
        return self
