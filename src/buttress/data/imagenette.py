"""ImageNette (Howard 2019): ten easily told classes of ImageNet, in two sizes.

The same image has the same id in both sizes. ``test`` is the official val folder.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from buttress.data.core import DATASETS, SILENT, Dataset
from buttress.data.folder import files_of, hold_out, list_files
from buttress.data.folder_sets import FolderSet, Source, facts, get_folder, root_of
from buttress.progress import Progress

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
FULL = Source(f"{SITE}/imagenette2.tgz", "fe2fc210e6bb7c5664d602c3cd71e612")
SMALL = Source(f"{SITE}/imagenette2-160.tgz", "e793b78cc4c9e9a4ccc0c1155377a412")
SMALL_SIZE = 160


def get_imagenette(name: str, source: Source, progress: Progress) -> Path:
    return get_folder(name, source.file.removesuffix(".tgz"), (source,), progress)


@DATASETS.register(
    "imagenette",
    tags=("download", "natural", "large"),
    get=lambda progress: get_imagenette("imagenette", FULL, progress),
    facts=facts(8_522, 3_925, 10),
)
def imagenette(
    split: str, *, image_size: int | None = None, progress: Progress = SILENT
) -> Dataset:
    """ImageNette: ten classes of ImageNet at full size; val is one in ten training images."""
    found = FolderSet("imagenette", root_of("imagenette", "imagenette2"), tuple(CLASSES.values()))
    return load(found, split, image_size)


@DATASETS.register(
    "imagenette-160",
    tags=("download", "natural", "large"),
    get=lambda progress: get_imagenette("imagenette-160", SMALL, progress),
    facts=facts(8_522, 3_925, 10, SMALL_SIZE),
)
def imagenette_160(
    split: str, *, image_size: int | None = None, progress: Progress = SILENT
) -> Dataset:
    """ImageNette with the shorter side at 160 pixels; val is one in ten training images."""
    root = root_of("imagenette-160", "imagenette2-160")
    names = tuple(CLASSES.values())
    found = FolderSet("imagenette-160", root, names, size=SMALL_SIZE, with_margin=False)
    return load(found, split, image_size)


def load(found: FolderSet, split: str, image_size: int | None) -> Dataset:
    list_part = partial(list_files, found.root, classes=tuple(CLASSES))
    if split == "test":
        return found.dataset(split, list_part("val"), image_size)
    train, val = hold_out(list_part("train"))
    files = files_of(split, {"train": train, "val": val}, found.root)
    return found.dataset(split, files, image_size)
