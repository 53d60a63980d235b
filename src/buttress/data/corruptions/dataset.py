"""A corrupted dataset: the official images if available, else corrupted on the fly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from buttress.data.core import Dataset
from buttress.data.corruptions.core import (
    CORRUPTIONS,
    check_severity,
    corrupt,
    corruption_variant,
)
from buttress.data.datasets.cifar import FIRST_TEST_ID
from buttress.data.pixels import MemoryPixels, PixelSource, to_float
from buttress.data.readers.folder import FolderPixels, image_file
from buttress.errors import DataError
from buttress.results.attack_record import OFFICIAL_SUFFIX
from buttress.system.files import cache_dir
from buttress.system.progress import Progress

ARRAY_FOLDERS = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}
IMAGE_FOLDERS = {
    "imagenet": "ImageNet-C",
    "imagenet-100": "ImageNet-C",
    "imagenet-rb5000": "ImageNet-C",
    "imagenette": "ImageNette-C",
}
FOLDER_VARIABLES = {
    "ImageNet-C": "BUTTRESS_IMAGENET_C",
    "ImageNette-C": "BUTTRESS_IMAGENETTE_C",
}
IMAGENET_C_SIZE = 224  # of image folders: scaling their images again would change them
IMAGES_PER_SEVERITY = 10_000  # of one severity in an array


def find_official_corruption(dataset: str, name: str) -> Path | None:
    """The array file or the folder of a corruption of a dataset, if it is on this machine."""
    for folder_path in _candidate_folders(dataset):
        if dataset in ARRAY_FOLDERS and (folder_path / f"{name}.npy").is_file():
            return folder_path / f"{name}.npy"
        if dataset in IMAGE_FOLDERS:
            for folder in (folder_path / name, *sorted(folder_path.glob(f"*/{name}"))):
                if folder.is_dir():
                    return folder
    return None


def _candidate_folders(dataset: str) -> Iterator[Path]:
    official_name = ARRAY_FOLDERS.get(dataset) or IMAGE_FOLDERS.get(dataset)
    if official_name is None:
        return
    if override := os.environ.get(FOLDER_VARIABLES.get(official_name, "")):
        yield Path(override).expanduser()
    for folder in (cache_dir(), cache_dir() / dataset):
        yield from (folder / official_name, folder / official_name.lower())


def official_pixels(dataset: Dataset, name: str, severity: int) -> PixelSource | None:
    """The official images of exactly these samples, or None where there are none."""
    if dataset.split != "test":
        return None
    place = find_official_corruption(dataset.name, name)
    if place is None:
        return None
    if dataset.name in ARRAY_FOLDERS:
        return _load_array(dataset, place, severity)
    if dataset.shape[1:] != (IMAGENET_C_SIZE, IMAGENET_C_SIZE):
        return None
    return _load_folder(dataset, place, severity)


def _load_array(dataset: Dataset, path: Path, severity: int) -> PixelSource:
    images, labels = _load_npy(path), _load_npy(path.with_name("labels.npy"))
    first = (severity - 1) * IMAGES_PER_SEVERITY
    if images.shape != (5 * IMAGES_PER_SEVERITY, 32, 32, 3) or images.dtype != np.uint8:
        raise DataError(
            f"{path} must be uint8 of shape ({5 * IMAGES_PER_SEVERITY}, 32, 32, 3), but is "
            f"{images.dtype} of shape {images.shape}; download it again or remove it"
        )
    rows = dataset.ids - FIRST_TEST_ID
    severity_labels = torch.from_numpy(labels[first : first + IMAGES_PER_SEVERITY].astype(np.int64))
    if labels.shape != (5 * IMAGES_PER_SEVERITY,) or not torch.equal(
        severity_labels[rows], dataset.labels
    ):
        raise DataError(
            f"{path.with_name('labels.npy')} must contain the test labels of {dataset.name} "
            "for each severity, but contains others; download it again or remove the folder"
        )
    block = torch.from_numpy(images[first : first + IMAGES_PER_SEVERITY]).permute(0, 3, 1, 2)
    return OfficialPixels(MemoryPixels(block).select(rows))


def _load_npy(path: Path) -> NDArray[np.uint8]:
    try:
        # Copy on write: torch wants memory it may write to, and the file must never change.
        array: NDArray[np.uint8] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}; download it again or remove it") from None
    return array


def _load_folder(dataset: Dataset, root_folder: Path, severity: int) -> PixelSource:
    """Files by the ids of the clean images, which are made of their paths below ``val``."""
    root = root_folder / str(severity)
    paths = {}
    for file in root.glob("*/*"):
        path = f"{file.parent.name}/{file.name}"
        paths[image_file(f"val/{path}", 0).id] = path
    ids = dataset.ids.tolist()
    if missing := sum(i not in paths for i in ids):
        raise DataError(
            f"{root} must contain the corrupted version of each image of {dataset.name}, but "
            f"{missing:,} of {len(ids):,} are missing; download it again or remove "
            f"{root_folder}"
        )
    return OfficialPixels(FolderPixels(root, tuple(paths[i] for i in ids), IMAGENET_C_SIZE))


@dataclass(frozen=True, eq=False)
class WrappedPixels:
    """Images made from those of ``source``, as many and of the same size."""

    source: PixelSource

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.source.shape

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, eq=False)
class OfficialPixels(WrappedPixels):
    """The published corrupted images; their fingerprint differs from generated ones."""

    def take(self, indices: Tensor) -> Tensor:
        return self.source.take(indices).contiguous()

    def select(self, indices: Tensor) -> OfficialPixels:
        return replace(self, source=self.source.select(indices))

    def fingerprint_bytes(self) -> Iterator[bytes]:
        yield b"official\n"
        yield from self.source.fingerprint_bytes()

    def load_into_memory(self, progress: object) -> OfficialPixels:
        return self


CORRUPTION_VERSION = 1  # goes up when the pixels of a corruption change


def generated_version(name: str) -> str:
    """Identify how generated images of a corruption are made."""
    return f"version {CORRUPTION_VERSION} {corruption_variant(name)}".rstrip()


def corrupt_dataset(dataset: Dataset, name: str, severity: int, seed: int = 0) -> Dataset:
    """The same images, labels, ids, classes and budgets, under a corruption.

    For the test images of CIFAR-10, CIFAR-100, ImageNet and ImageNette (at 224 pixels) these are
    the official arrays or files where the user has them (`find_official_corruption`); the name
    then ends in ``-official`` and ``seed`` plays no part. Otherwise images are corrupted when they
    are read.
    """
    name = CORRUPTIONS.entry(name).name
    severity = check_severity(severity)
    dataset_name = f"{dataset.name}+{name}-{severity}"
    if (official := official_pixels(dataset, name, severity)) is not None:
        return replace(dataset, name=f"{dataset_name}{OFFICIAL_SUFFIX}", pixels=official)
    corrupted_pixels = CorruptedPixels(dataset.pixels, dataset.ids, name, severity, seed)
    return replace(dataset, name=dataset_name, pixels=corrupted_pixels)


@dataclass(frozen=True, eq=False)
class CorruptedPixels(WrappedPixels):
    """Images of ``source``, corrupted when they are read."""

    ids: Tensor  # (N,)
    name: str
    severity: int
    seed: int

    def take(self, indices: Tensor) -> Tensor:
        clean = to_float(self.source.take(indices))
        if len(clean) == 0:
            return clean.to(torch.uint8)
        x = corrupt(clean, self.name, self.severity, self.ids[indices], self.seed)
        return x.mul_(255).round_().to(torch.uint8)

    def select(self, indices: Tensor) -> CorruptedPixels:
        return replace(self, source=self.source.select(indices), ids=self.ids[indices])

    def fingerprint_bytes(self) -> Iterator[bytes]:
        version = f"seed {self.seed} {generated_version(self.name)}"
        yield f"{self.name} {self.severity} {version}\n".encode()
        yield from self.source.fingerprint_bytes()

    def load_into_memory(self, progress: Progress) -> CorruptedPixels:
        return replace(self, source=self.source.load_into_memory(progress))
