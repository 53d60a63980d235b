"""``folder:PATH``: images of your own, in ``train/CLASS/``, ``val/CLASS/``, ``test/CLASS/``.

Without ``test/``, the split ``test`` means ``val``. Without ``val/``, every tenth training image
(by a hash of its path) is held out as ``val``. Images are ordered by the hash of their path, so
that the first n are a fair sample, and adding files changes no id.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from buttress.data.core import MAX_SMALL_IMAGE, READERS, Dataset, budgets_of_size
from buttress.data.pixels import ChannelStats, PixelSource, channel_stats
from buttress.data.readers.images import (
    EncodedPixels,
    decode_image,
    read_image_size,
    unreadable_message,
)
from buttress.errors import DataError
from buttress.results.core import check_split
from buttress.system.progress import Progress
from buttress.system.rng import derive_seed
from buttress.threats.norm_ball import Norm

if TYPE_CHECKING:
    from buttress.data.readers.hugging_face import HuggingFacePixels
    from buttress.data.readers.tar import TarPixels


@dataclass(frozen=True, eq=False)
class FolderPixels(EncodedPixels):
    """Files under ``root``, each cut to a square of ``size`` pixels."""

    root: Path
    paths: tuple[str, ...]  # (N,) relative to root, with forward slashes
    size: int
    resize_shorter_side: int | None = None  # before the cut; else it becomes ``size``
    apply_exif_rotation: bool = False  # photographs are turned as their cameras noted

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, row: int) -> NDArray[np.uint8]:
        path, rotate = self.root / self.paths[row], self.apply_exif_rotation
        return decode_image(path, self.size, self.resize_shorter_side, apply_exif_rotation=rotate)

    def select(self, indices: Tensor) -> FolderPixels:
        return replace(self, paths=tuple(self.paths[i] for i in indices.tolist()))

    def fingerprint_bytes(self) -> Iterator[bytes]:
        if self.resize_shorter_side is not None:
            yield f"shorter side {self.resize_shorter_side}\n".encode()
        for path in self.paths:
            yield f"{path}\0{(self.root / path).stat().st_size}\n".encode(errors="surrogateescape")


SPLIT_FOLDERS = ("train", "val", "test")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
SYSTEM_FILES = ("Thumbs.db", "desktop.ini")
STATISTICS_SAMPLE = 2_000  # training images that give mean, std and the usual size
DEFAULT_SIZE = 224
VAL_FRACTION_DENOMINATOR = 10  # training images held out where there is no val/
EXPECTED_LAYOUT = "train/CLASS/IMAGE and val/CLASS/IMAGE"


class ImageFile(NamedTuple):
    id: int  # first, so that sorting goes by id
    path: str  # relative to the root, with forward slashes
    label: int


@READERS.register("folder")
def folder(path: str, split: str, image_size: int | None, progress: Progress) -> Dataset:
    """Images of your own in train/ and val/ class folders."""
    check_split(split)
    root = Path(path).expanduser()
    classes, parts = scan_folder(root)
    files = select_split(split, parts, root)
    log_substituted_splits(root, split, parts, progress)
    sample = (parts.get("train") or files)[:STATISTICS_SAMPLE]
    try:
        size = image_size or default_image_size(root, sample)
        stats = sample_stats(root, tuple(file_stamp(root, f) for f in sample), size)
    except DataError:  # one image is named; a look at all of them tells how many there are
        all_paths = [f.path for part in parts.values() for f in part]
        FolderPixels(root, tuple(all_paths), MAX_SMALL_IMAGE).load_into_memory(progress)
        raise
    paths = tuple(f.path for f in files)
    pixels = FolderPixels(root, paths, size, apply_exif_rotation=True)
    budgets = budgets_of_size(size)
    data = file_dataset(f"folder:{path}", split, files, pixels, classes, stats, budgets)
    labels = {file.label for file in files}
    empty = tuple(name for label, name in enumerate(classes) if label not in labels)
    return replace(data, dropped_files=find_dropped_files(root, split), empty_classes=empty)


def file_dataset(
    name: str,
    split: str,
    files: list[ImageFile],
    pixels: PixelSource,
    classes: tuple[str, ...],
    stats: ChannelStats,
    budgets: Mapping[Norm, float],
) -> Dataset:
    """The dataset of some files, which have labels and ids."""
    labels = torch.tensor([f.label for f in files], dtype=torch.int64)
    ids = torch.tensor([f.id for f in files], dtype=torch.int64)
    return Dataset(name, split, pixels, labels, ids, classes, *stats, budgets)


def default_encoded_size(pixels: TarPixels | HuggingFacePixels) -> int:
    """The size of the first image if it is at most 64 pixels, else 224."""
    name, content = pixels.read_encoded(0)
    first = read_image_size(io.BytesIO(content), name)
    return min(first) if max(first) <= MAX_SMALL_IMAGE else DEFAULT_SIZE


def log_substituted_splits(
    root: Path, split: str, parts: dict[str, list[ImageFile]], progress: Progress
) -> None:
    """Log which images are used for a split that has no folder."""
    if split == "test" and "test" not in parts:
        progress.log(f"{root} has no test/ folder; using its validation images as the test split")
    if split in ("val", "test") and not (root / "val").is_dir() and "train" in parts:
        num_training = len(parts["train"]) + len(parts["val"])
        progress.log(
            f"{root} has no val/ folder; using {len(parts['val'])} of its {num_training} "
            "training images as the validation split (chosen by a hash of their paths)"
        )


def scan_folder(root: Path) -> tuple[tuple[str, ...], dict[str, list[ImageFile]]]:
    """The classes, and the files of train, val and test in order of id, where they exist."""
    if not root.is_dir():
        raise DataError(f"{root} must be a folder with {EXPECTED_LAYOUT}, but does not exist")
    present = [part for part in SPLIT_FOLDERS if (root / part).is_dir()]
    if not present:
        names = ", ".join(sorted(os.listdir(root))[:5]) or "nothing"
        raise DataError(f"{root} must contain {EXPECTED_LAYOUT}, but contains {names}")
    classes = class_names(root / present[0])
    if len(classes) < 2:
        classes_phrase = f"only {classes[0]!r}" if classes else "none"
        raise DataError(
            f"{root / present[0]} must contain one folder per class and at least two classes, "
            f"but contains {classes_phrase}"
        )
    parts = {part: list_files(root, part, classes) for part in present}
    if "val" not in parts and "train" in parts:
        parts["train"], parts["val"] = split_validation(parts["train"])
    return classes, parts


def class_names(folder: Path) -> tuple[str, ...]:
    entries = [entry for entry in os.scandir(folder) if entry.is_dir()]
    names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    return tuple(check_file_name(name, folder) for name in names)


def check_file_name(name: str, folder: Path) -> str:
    """Return the name of a file if it is valid UTF-8, else raise `DataError`."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{folder} contains the name {name!r}, which is not valid UTF-8; rename it"
        ) from None
    return name


def walk_folder(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield folders and their files below a folder; links are followed once and never upwards.

    A link to a folder above would bring in the images of other classes.
    """
    visited, start = set(), Path(folder).resolve()
    for current, folders, files in os.walk(folder, followlinks=True):
        real = Path(current).resolve()
        if real in visited or real in start.parents:
            folders.clear()
            continue
        visited.add(real)
        folders.sort()  # which of two ways to a folder counts must not depend on the disk
        yield current, files


def list_files(root: Path, split: str, classes: tuple[str, ...]) -> list[ImageFile]:
    """All images of one part; further folders inside a class folder belong to the class."""
    if unknown_classes := sorted(set(class_names(root / split)) - set(classes)):
        raise DataError(
            f"{root / split} contains the class {unknown_classes[0]!r}, which "
            f"{root / 'train'} does not have; all splits must have the classes of train/"
        )
    files = []
    for label, name in enumerate(classes):
        for subfolder, entries in walk_folder(root / split / name):
            relative_path = check_file_name(Path(subfolder).relative_to(root).as_posix(), root)
            images = filter(is_image, entries)
            files += [
                image_file(f"{relative_path}/{check_file_name(e, Path(subfolder))}", label)
                for e in images
            ]
        if split == "train" and not (files and files[-1].label == label):
            raise DataError(
                f"{root / split / name} must contain images, but contains no {IMAGE_SUFFIXES} file"
            )
    if not files:
        raise DataError(
            f"{root / split} must contain images, but contains no {IMAGE_SUFFIXES} file"
        )
    return sorted(files)


def find_dropped_files(root: Path, split: str) -> tuple[str, ...]:
    """Files of a split that are not read: images beside class folders, other files in them."""
    dropped = []
    for part in ("", *source_folders(root, split)):
        entries = [e for e in os.scandir(root / part) if not e.name.startswith(".")]
        dropped += [e.path for e in entries if e.is_file() and is_image(e.name)]
        for folder in (e.path for e in entries if part and e.is_dir()):
            dropped += [
                os.path.join(subfolder, name)
                for subfolder, names in walk_folder(Path(folder))
                for name in names
                if not (is_image(name) or name.startswith(".") or name in SYSTEM_FILES)
            ]
    return tuple(Path(path).relative_to(root).as_posix() for path in sorted(dropped))


def source_folders(root: Path, split: str) -> list[str]:
    """The folders that a split is read from; see `select_split` and `split_validation`."""
    if split == "test" and not (root / "test").is_dir():
        split = "val"
    parts = ["val" if (root / "val").is_dir() else "train"] if split == "val" else split.split("+")
    return [part for part in dict.fromkeys(parts) if (root / part).is_dir()]


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def image_file(path: str, label: int) -> ImageFile:
    return ImageFile(derive_seed(path) >> 1, path, label)


def split_validation(
    files: list[ImageFile], one_in: int = VAL_FRACTION_DENOMINATOR
) -> tuple[list[ImageFile], list[ImageFile]]:
    """Training and validation images; adding a file moves no other from one to the other."""
    hashes = {f.path: derive_seed("val", f.path) for f in files}
    held_out = {path for path, mark in hashes.items() if mark % one_in == 0}
    held_out = held_out or {min(hashes, key=hashes.__getitem__)}  # so few images that none was hit
    return [f for f in files if f.path not in held_out], [f for f in files if f.path in held_out]


def select_split(split: str, parts: dict[str, list[ImageFile]], root: Path) -> list[ImageFile]:
    if split == "test" and "test" not in parts:
        split = "val"
    split_names = split.split("+")
    if missing := [part for part in split_names if part not in parts]:
        raise DataError(f"the split {split!r} needs {root / missing[0]}, but it does not exist")
    files = sorted(file for part in split_names for file in parts[part])
    if not files:  # the only image is held out
        raise DataError(
            f"the split {split!r} of {root} must contain at least one image, but is empty"
        )
    return files


def default_image_size(root: Path, sample: list[ImageFile]) -> int:
    """224, unless all images share one size of at most 64 pixels."""
    first = read_image_size(root / sample[0].path)
    if max(first) > MAX_SMALL_IMAGE:
        return DEFAULT_SIZE
    is_uniform = all(read_image_size(root / f.path) == first for f in sample[1:])
    return min(first) if is_uniform else DEFAULT_SIZE


def file_stamp(root: Path, file: ImageFile) -> tuple[str, int, int]:
    """What changes when a file is replaced."""
    try:
        status = (root / file.path).stat()
    except OSError as error:
        raise DataError(unreadable_message(str(root / file.path), error)) from None
    return file.path, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=8)
def sample_stats(root: Path, stamps: tuple[tuple[str, int, int], ...], size: int) -> ChannelStats:
    paths = tuple(path for path, _, _ in stamps)
    return channel_stats(FolderPixels(root, paths, size, apply_exif_rotation=True))
