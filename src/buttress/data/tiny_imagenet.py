"""Tiny ImageNet (Stanford CS231n): 64x64 images of 200 classes of ImageNet.

``test`` is the official validation set: the labels of the official test images are not published.
"""

from __future__ import annotations

from pathlib import Path

from buttress.data.core import DATASETS, NATURAL_BUDGETS, SILENT, Dataset, Facts
from buttress.data.folder import File, class_names, file_at, files_of, hold_out, list_files
from buttress.data.folder_sets import FolderSet, Source, get_folder, root_of
from buttress.errors import DataError
from buttress.progress import Progress

ARCHIVE = Source(
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"
)
KEPT = "tiny-imagenet-200"
MEAN = (0.4802, 0.4481, 0.3975)  # of the training images, as published: four digits
STD = (0.2770, 0.2691, 0.2821)
SIZE = 64
ONE_IN = 20  # training images held out as val


def get_tiny_imagenet(progress: Progress) -> Path:
    return get_folder("tiny-imagenet", KEPT, (ARCHIVE,), progress)


@DATASETS.register(
    "tiny-imagenet",
    tags=("download", "natural"),
    get=get_tiny_imagenet,
    facts=Facts(95_000, 10_000, 200, (3, SIZE, SIZE), MEAN, STD),
)
def tiny_imagenet(
    split: str, *, image_size: int | None = None, progress: Progress = SILENT
) -> Dataset:
    """Tiny ImageNet: 200 classes at 64x64; test is its val, val is one in 20 training images."""
    root = root_of("tiny-imagenet", KEPT)
    wnids = class_names(root / "train")
    found = FolderSet(
        "tiny-imagenet", root, names_of(root, wnids), SIZE, False, MEAN, STD, NATURAL_BUDGETS
    )
    if split == "test":
        return found.dataset(split, annotated(root, wnids), image_size)
    train, val = hold_out(list_files(root, "train", wnids), ONE_IN)
    files = files_of(split, {"train": train, "val": val}, root)
    return found.dataset(split, files, image_size)


def names_of(root: Path, wnids: tuple[str, ...]) -> tuple[str, ...]:
    lines = read_table(root / "words.txt")
    words = {line[0]: line[1].partition(",")[0] for line in lines if len(line) > 1}
    return tuple(words.get(wnid, wnid) for wnid in wnids)


def annotated(root: Path, wnids: tuple[str, ...]) -> list[File]:
    """The official validation images; the first columns of the list are image and class."""
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    path = root / "val" / "val_annotations.txt"
    lines = [line for line in read_table(path) if len(line) > 1]
    if strange := sorted({line[1] for line in lines} - set(labels)) or not lines:
        raise DataError(f"{path} must list images of the classes in train, but has {strange}")
    return sorted(file_at(f"val/images/{line[0]}", labels[line[1]]) for line in lines)


def read_table(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise DataError(
            f"{path} is missing; remove {path.parents[0]} and run `buttress data get tiny-imagenet`"
        )
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
