"""Caltech-101 (Fei-Fei et al. 2004): about 9,000 photographs of objects.

The clutter ``BACKGROUND_Google`` is kept as a class, so that there are 102, as in published
evaluations of networks that were fine-tuned on it. Of each class 27 images are ``train``, three are
``val`` and the rest is ``test``: the usual number of 30 for training, drawn by hashes of the paths.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from buttress.data.core import DATASETS, SILENT, Dataset
from buttress.data.folder import File, class_names, files_of, list_files
from buttress.data.folder_sets import FolderSet, Source, facts, get_folder, root_of
from buttress.errors import DataError
from buttress.progress import Progress
from buttress.streams import seed_of

ARCHIVE = Source(
    "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
    "3138e1922a9193bfa496528edbbc45d0",
)
KEPT = "101_ObjectCategories"
CLASSES = 102
TRAIN, VAL = 30, 3  # of each class


def get_caltech101(progress: Progress) -> Path:
    return get_folder("caltech101", KEPT, (ARCHIVE,), progress)


@DATASETS.register(
    "caltech101",
    tags=("download", "natural", "large"),
    get=get_caltech101,
    facts=facts(3_060, 6_084, 102),
)
def caltech101(
    split: str, *, image_size: int | None = None, progress: Progress = SILENT
) -> Dataset:
    """Caltech-101: objects in 102 classes with the background; 30 training images of each."""
    root = root_of("caltech101", KEPT)
    classes = tuple(sorted(class_names(root), key=str.lower))
    if len(classes) != CLASSES:
        raise DataError(
            f"{root} must hold {CLASSES} class folders with BACKGROUND_Google, but holds "
            f"{len(classes)}; remove it and run `buttress data get caltech101`"
        )
    found = FolderSet("caltech101", root, classes)
    files = files_of(split, parts_of(list_files(root, "", classes)), root)
    return found.dataset(split, files, image_size)


def parts_of(files: list[File]) -> dict[str, list[File]]:
    by_class: dict[int, list[File]] = defaultdict(list)
    for file in files:
        by_class[file.label].append(file)
    parts: dict[str, list[File]] = {"train": [], "val": [], "test": []}
    for members in by_class.values():
        members.sort(key=lambda file: seed_of("caltech101", file.path))
        parts["val"] += members[:VAL]
        parts["train"] += members[VAL:TRAIN]
        parts["test"] += members[TRAIN:]
    return parts
