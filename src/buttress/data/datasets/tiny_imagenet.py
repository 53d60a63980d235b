"""Tiny ImageNet (Stanford CS231n): 64x64 images of 200 classes of ImageNet.

``test`` is the official validation set: the labels of the official test images are not published.
"""

from __future__ import annotations

from pathlib import Path

from buttress.data.core import CIFAR_BUDGETS, DATASETS, Dataset, DatasetFacts
from buttress.data.datasets.folder_dataset import (
    DownloadFile,
    FolderDataset,
    dataset_root,
    download_folder,
)
from buttress.data.readers.folder import (
    ImageFile,
    class_names,
    image_file,
    list_files,
    select_split,
    split_validation,
)
from buttress.errors import DataError
from buttress.system.progress import Progress

ARCHIVE = DownloadFile(
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"
)
KEPT_FOLDER = "tiny-imagenet-200"
MEAN = (0.4802, 0.4481, 0.3975)  # of the training images, as published: four digits
STD = (0.2770, 0.2691, 0.2821)
IMAGE_SIZE = 64
VAL_FRACTION_DENOMINATOR = 20  # training images held out as val


@DATASETS.register(
    "tiny-imagenet",
    tags=("download", "natural"),
    get=lambda progress: download_folder("tiny-imagenet", KEPT_FOLDER, (ARCHIVE,), progress),
    facts=DatasetFacts(95_000, 5_000, 10_000, 200, (3, IMAGE_SIZE, IMAGE_SIZE), MEAN, STD),
)
def tiny_imagenet(split: str, image_size: int | None, progress: Progress) -> Dataset:
    """Tiny ImageNet: 200 classes at 64x64; test is its val, val is one in 20 training images."""
    root = dataset_root("tiny-imagenet", KEPT_FOLDER)
    wnids = class_names(root / "train")
    names = class_display_names(root, wnids)
    folder_dataset = FolderDataset(
        "tiny-imagenet", root, names, IMAGE_SIZE, False, MEAN, STD, CIFAR_BUDGETS
    )
    if split == "test":
        return folder_dataset.load_split(split, read_validation_files(root, wnids), image_size)
    train, val = split_validation(list_files(root, "train", wnids), VAL_FRACTION_DENOMINATOR)
    files = select_split(split, {"train": train, "val": val}, root)
    return folder_dataset.load_split(split, files, image_size)


def class_display_names(root: Path, wnids: tuple[str, ...]) -> tuple[str, ...]:
    lines = read_tab_separated(root / "words.txt")
    words = {line[0]: line[1].partition(",")[0] for line in lines if len(line) > 1}
    return tuple(words.get(wnid, wnid) for wnid in wnids)


def read_validation_files(root: Path, wnids: tuple[str, ...]) -> list[ImageFile]:
    """The official validation images; the first columns of the list are image and class."""
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    path = root / "val" / "val_annotations.txt"
    lines = [line for line in read_tab_separated(path) if len(line) > 1]
    if unknown_classes := sorted({line[1] for line in lines} - set(labels)) or not lines:
        raise DataError(
            f"{path} must list images of the classes in train, but has {unknown_classes}"
        )
    return sorted(image_file(f"val/images/{line[0]}", labels[line[1]]) for line in lines)


def read_tab_separated(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise DataError(
            f"{path} is missing; remove {path.parents[0]} and run `buttress data get tiny-imagenet`"
        )
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
