"""``folder:PATH``: images of your own, in ``train/CLASS/``, ``val/CLASS/``, ``test/CLASS/``.

Without ``test/``, the split ``test`` means ``val``. Without ``val/``, every tenth training image
(by a hash of its path) is held out as ``val``. Images are ordered by the hash of their path, so
that the first n are a fair sample, and adding files changes no id.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from buttress.data.core import NATURAL_BUDGETS, READERS, SILENT, Dataset
from buttress.data.folder_pixels import FolderPixels
from buttress.data.pixels import ChannelStats, channel_stats
from buttress.data.splits import check_split
from buttress.data.streamed import read_size, unreadable
from buttress.errors import DataError
from buttress.progress import Progress
from buttress.streams import seed_of

PARTS = ("train", "val", "test")
ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
SAMPLE = 2_000  # training images that give mean, std and the usual size
LARGEST_SMALL, USUAL_SIZE = 64, 224
ONE_IN = 10  # training images held out where there is no val/
LAYOUT = "train/CLASS/IMAGE and val/CLASS/IMAGE"


class File(NamedTuple):
    id: int  # first, so that sorting goes by id
    path: str  # relative to the root, with forward slashes
    label: int


@READERS.register("folder")
def folder(
    path: str, split: str, *, image_size: int | None = None, progress: Progress = SILENT
) -> Dataset:
    """Images of your own in train/ and val/ class folders."""
    check_split(split)
    root = Path(path).expanduser()
    classes, parts = scan(root)
    files = files_of(split, parts, root)
    say_stand_ins(root, split, parts, progress)
    sample = (parts.get("train") or files)[:SAMPLE]
    try:
        size = image_size or usual_size(root, sample)
        mean, std = sample_stats(root, tuple(stamp(root, f) for f in sample), size)
    except DataError:  # one image is named; a look at all of them tells how many there are
        every = [f.path for part in parts.values() for f in part]
        FolderPixels(root, tuple(every), LARGEST_SMALL).loaded(progress)
        raise
    return Dataset(
        name=f"folder:{path}",
        split=split,
        pixels=FolderPixels(root, tuple(f.path for f in files), size, upright=True),
        labels=torch.tensor([f.label for f in files]),
        ids=torch.tensor([f.id for f in files]),
        classes=classes,
        mean=mean,
        std=std,
        budgets=NATURAL_BUDGETS,
    )


def say_stand_ins(root: Path, split: str, parts: dict[str, list[File]], progress: Progress) -> None:
    """Says which images stand for a part that has no folder."""
    if split == "test" and "test" not in parts:
        progress.log(f"{root} has no test/: its validation images stand for it")
    if split in ("val", "test") and not (root / "val").is_dir() and "train" in parts:
        every = len(parts["train"]) + len(parts["val"])
        progress.log(
            f"{root} has no val/: {len(parts['val'])} of its {every} training images are held out "
            "as val, chosen by a hash of their paths"
        )


def scan(root: Path) -> tuple[tuple[str, ...], dict[str, list[File]]]:
    """The classes, and the files of train, val and test in order of id, where they exist."""
    if not root.is_dir():
        raise DataError(f"{root} must be a folder that holds {LAYOUT}, but there is no such folder")
    present = [part for part in PARTS if (root / part).is_dir()]
    if not present:
        names = ", ".join(sorted(os.listdir(root))[:5]) or "nothing"
        raise DataError(f"{root} must hold {LAYOUT}, but holds {names}")
    classes = class_names(root / present[0])
    if len(classes) < 2:
        found = f"only {classes[0]!r}" if classes else "none"
        raise DataError(
            f"{root / present[0]} must hold a folder for each of two or more classes, but holds "
            f"{found}"
        )
    parts = {part: list_files(root, part, classes) for part in present}
    if "val" not in parts and "train" in parts:
        parts["train"], parts["val"] = hold_out(parts["train"])
    return classes, parts


def class_names(place: Path) -> tuple[str, ...]:
    entries = [entry for entry in os.scandir(place) if entry.is_dir()]
    found = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    return tuple(check_text(name, place) for name in found)


def check_text(name: str, place: Path) -> str:
    """The name of a file, if other programs can write it too."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"{place} holds the name {name!r}, which is not UTF-8; rename it") from None
    return name


def walk(place: Path) -> Iterator[tuple[str, list[str]]]:
    """Folders and their files below a place, links followed, but none twice and none upwards.

    A link to a folder above would bring in the images of other classes.
    """
    seen, start = set(), Path(place).resolve()
    for here, folders, files in os.walk(place, followlinks=True):
        real = Path(here).resolve()
        if real in seen or real in start.parents:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()  # which of two ways to a folder counts must not depend on the disk
        yield here, files


def list_files(root: Path, part: str, classes: tuple[str, ...]) -> list[File]:
    """All images of one part; further folders inside a class folder belong to the class."""
    if strange := sorted(set(class_names(root / part)) - set(classes)):
        raise DataError(
            f"{root / part} holds the class {strange[0]!r}, which {root / 'train'} does not; the "
            "classes are those of the training images"
        )
    files = []
    for label, name in enumerate(classes):
        for place, entries in walk(root / part / name):
            inside = check_text(Path(place).relative_to(root).as_posix(), root)
            images = (e for e in entries if e.lower().endswith(ENDINGS) and e[0] != ".")
            files += [file_at(f"{inside}/{check_text(e, Path(place))}", label) for e in images]
        if part == "train" and not (files and files[-1].label == label):
            raise DataError(f"{root / part / name} must hold images, but holds none of {ENDINGS}")
    if not files:
        raise DataError(f"{root / part} must hold images, but holds none of {ENDINGS}")
    return sorted(files)


def file_at(path: str, label: int) -> File:
    return File(seed_of(path) >> 1, path, label)


def hold_out(files: list[File], one_in: int = ONE_IN) -> tuple[list[File], list[File]]:
    """Training and validation images; adding a file moves no other from one to the other."""
    marks = {f.path: seed_of("val", f.path) for f in files}
    chosen = {path for path, mark in marks.items() if mark % one_in == 0}
    chosen = chosen or {min(marks, key=marks.__getitem__)}  # so few images that none was hit
    return [f for f in files if f.path not in chosen], [f for f in files if f.path in chosen]


def files_of(split: str, parts: dict[str, list[File]], root: Path) -> list[File]:
    if split == "test" and "test" not in parts:
        split = "val"
    wanted = split.split("+")
    if missing := [part for part in wanted if part not in parts]:
        raise DataError(f"the split {split!r} needs {root / missing[0]}, but it does not exist")
    files = sorted(file for part in wanted for file in parts[part])
    if not files:  # the only image is held out
        raise DataError(f"the split {split!r} of {root} must hold an image, but holds none")
    return files


def usual_size(root: Path, sample: list[File]) -> int:
    """224, unless all images share one size of at most 64 pixels."""
    first = read_size(root / sample[0].path)
    if max(first) <= LARGEST_SMALL and all(read_size(root / f.path) == first for f in sample[1:]):
        return min(first)
    return USUAL_SIZE


def stamp(root: Path, file: File) -> tuple[str, int, int]:
    """What changes when a file is replaced."""
    try:
        status = (root / file.path).stat()
    except OSError as error:
        raise DataError(unreadable(str(root / file.path), error)) from None
    return file.path, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=8)
def sample_stats(root: Path, stamps: tuple[tuple[str, int, int], ...], size: int) -> ChannelStats:
    paths = tuple(path for path, _, _ in stamps)
    return channel_stats(FolderPixels(root, paths, size, upright=True))
