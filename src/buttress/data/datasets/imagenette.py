"""ImageNette (Howard 2019): ten easily distinguished classes of ImageNet, in two sizes.

The same image has the same id in both sizes. ``test`` is the official val folder.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from buttress.data.core import DATASETS, Dataset
from buttress.data.datasets.folder_dataset import (
    DownloadFile,
    FolderDataset,
    dataset_root,
    download_folder,
    imagenet_facts,
)
from buttress.data.readers.folder import list_files, select_split, split_validation
from buttress.system.progress import Progress

CLASSES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}
SITE = "https://s3.amazonaws.com/fast-ai-imageclas"
FULL_ARCHIVE = DownloadFile(f"{SITE}/imagenette2.tgz", "fe2fc210e6bb7c5664d602c3cd71e612")
SMALL_ARCHIVE = DownloadFile(f"{SITE}/imagenette2-160.tgz", "e793b78cc4c9e9a4ccc0c1155377a412")
SMALL_SIZE = 160


def get_imagenette(name: str, source: DownloadFile, progress: Progress) -> Path:
    return download_folder(name, source.file.removesuffix(".tgz"), (source,), progress)


@DATASETS.register(
    "imagenette",
    tags=("download", "natural", "large"),
    get=lambda progress: get_imagenette("imagenette", FULL_ARCHIVE, progress),
    facts=imagenet_facts(8_522, 947, 3_925, 10),
)
def imagenette(split: str, image_size: int | None, progress: Progress) -> Dataset:
    """ImageNette: ten classes of ImageNet at full size; val is one in ten training images."""
    folder_dataset = FolderDataset(
        "imagenette", dataset_root("imagenette", "imagenette2"), tuple(CLASSES.values())
    )
    return load_imagenette(folder_dataset, split, image_size)


@DATASETS.register(
    "imagenette-160",
    tags=("download", "natural", "large"),
    get=lambda progress: get_imagenette("imagenette-160", SMALL_ARCHIVE, progress),
    facts=imagenet_facts(8_522, 947, 3_925, 10, SMALL_SIZE),
)
def imagenette_160(split: str, image_size: int | None, progress: Progress) -> Dataset:
    """ImageNette with the shorter side at 160 pixels; val is one in ten training images."""
    root = dataset_root("imagenette-160", "imagenette2-160")
    names = tuple(CLASSES.values())
    folder_dataset = FolderDataset(
        "imagenette-160", root, names, size=SMALL_SIZE, center_crop=False
    )
    return load_imagenette(folder_dataset, split, image_size)


def load_imagenette(folder_dataset: FolderDataset, split: str, image_size: int | None) -> Dataset:
    list_part = partial(list_files, folder_dataset.root, classes=tuple(CLASSES))
    if split == "test":
        return folder_dataset.load_split(split, list_part("val"), image_size)
    train, val = split_validation(list_part("train"))
    files = select_split(split, {"train": train, "val": val}, folder_dataset.root)
    return folder_dataset.load_split(split, files, image_size)
