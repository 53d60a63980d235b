"""Caltech-101 (Fei-Fei et al. 2004): about 9,000 photographs of objects.

The clutter ``BACKGROUND_Google`` is kept as a class, so that there are 102, as in published
evaluations of models fine-tuned on it. Of each class 27 images are ``train``, three are ``val`` and
the rest is ``test``: the usual number of 30 for training, drawn by hashes of the paths.
"""

from __future__ import annotations

from collections import defaultdict

from buttress.data.core import DATASETS, Dataset
from buttress.data.datasets.folder_dataset import (
    DownloadFile,
    FolderDataset,
    dataset_root,
    download_folder,
    imagenet_facts,
)
from buttress.data.readers.folder import ImageFile, class_names, list_files, select_split
from buttress.errors import DataError
from buttress.system.progress import Progress
from buttress.system.rng import derive_seed

ARCHIVE = DownloadFile(
    "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
    "3138e1922a9193bfa496528edbbc45d0",
)
KEPT_FOLDER = "101_ObjectCategories"
NUM_CLASSES = 102
TRAIN_PER_CLASS, VAL_PER_CLASS = 30, 3  # of each class


@DATASETS.register(
    "caltech101",
    tags=("download", "natural", "large"),
    get=lambda progress: download_folder("caltech101", KEPT_FOLDER, (ARCHIVE,), progress),
    facts=imagenet_facts(2_754, 306, 6_084, 102),
)
def caltech101(split: str, image_size: int | None, progress: Progress) -> Dataset:
    """Caltech-101: objects in 102 classes with the background; 30 training images of each."""
    root = dataset_root("caltech101", KEPT_FOLDER)
    classes = tuple(sorted(class_names(root), key=str.lower))
    if len(classes) != NUM_CLASSES:
        raise DataError(
            f"{root} must contain {NUM_CLASSES} class folders including BACKGROUND_Google, "
            f"but contains {len(classes)}; remove it and run `buttress data get caltech101`"
        )
    folder_dataset = FolderDataset("caltech101", root, classes)
    files = select_split(split, split_files(list_files(root, "", classes)), root)
    return folder_dataset.load_split(split, files, image_size)


def split_files(files: list[ImageFile]) -> dict[str, list[ImageFile]]:
    by_class: dict[int, list[ImageFile]] = defaultdict(list)
    for file in files:
        by_class[file.label].append(file)
    parts: dict[str, list[ImageFile]] = {"train": [], "val": [], "test": []}
    for members in by_class.values():
        members.sort(key=lambda file: derive_seed("caltech101", file.path))
        parts["val"] += members[:VAL_PER_CLASS]
        parts["train"] += members[VAL_PER_CLASS:TRAIN_PER_CLASS]
        parts["test"] += members[TRAIN_PER_CLASS:]
    return parts
