"""ImageNet with the 5,000 test images of RobustBench, in its order (arXiv:2010.09670).

The list is part of the package ``robustbench``: it is read from there where that is installed, else
from ``imagenet_test_image_ids.txt`` beside ``train`` and ``val``. Ids are those of ``imagenet``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from buttress.data.core import DATASETS, SILENT, Dataset
from buttress.data.folder import File, file_at
from buttress.data.folder_sets import FolderSet, facts
from buttress.data.imagenet import folder, get_imagenet, load, root_with, wordnet
from buttress.errors import DataError
from buttress.progress import Progress

COUNT = 5_000
FILE = "imagenet_test_image_ids.txt"
PLACES = ("helper_files", "data")  # in the package, new and old
ADDRESS = "https://github.com/RobustBench/robustbench/tree/master/robustbench/helper_files"


def get_rb5000(progress: Progress) -> Path:
    list_path()
    return get_imagenet(progress)


@DATASETS.register(
    "imagenet-rb5000",
    paper="arXiv:2010.09670",
    tags=("natural", "large", "local"),
    get=get_rb5000,
    facts=facts(1_268_355, 5_000, 1_000),
)
def imagenet_rb5000(
    split: str, *, image_size: int | None = None, progress: Progress = SILENT
) -> Dataset:
    """ImageNet-1k from your own copy, with the 5,000 images of RobustBench as test."""
    if split != "test":
        return load("imagenet-rb5000", split, image_size, tuple(wordnet()))
    found = FolderSet("imagenet-rb5000", root_with("val"), tuple(wordnet().values()))
    return found.dataset(split, read_list(list_path(), found.root), image_size)


def list_path() -> Path:
    beside = folder() / FILE
    if beside.is_file():
        return beside
    spec = importlib.util.find_spec("robustbench")  # finds it without running it
    for package in (spec and spec.submodule_search_locations) or ():
        for place in PLACES:
            if (Path(package) / place / FILE).is_file():
                return Path(package) / place / FILE
    raise DataError(
        f"imagenet-rb5000 needs the list of images of RobustBench: install the package "
        f"robustbench, or put {FILE} from {ADDRESS} into {folder()}"
    )


def read_list(path: Path, root: Path) -> list[File]:
    """One ``WNID/IMAGE`` per line."""
    lines = path.read_text(encoding="utf-8").split()
    if len(lines) != COUNT or len(set(lines)) != COUNT:
        raise DataError(
            f"{path} must list {COUNT:,} different images, but has {len(set(lines)):,} in "
            f"{len(lines):,} lines"
        )
    labels = {wnid: label for label, wnid in enumerate(wordnet())}
    files = []
    for line in lines:
        wnid, _, name = line.partition("/")
        if wnid not in labels or not (root / "val" / wnid / name).is_file() or "/" in name:
            raise DataError(f"{path} lists {line!r}, but {root / 'val'} has no such image")
        files.append(file_at(f"val/{line}", labels[wnid]))
    return files
