"""ImageNet (ILSVRC 2012) from the user's own copy: its license forbids redistribution.

The folder is ``$BUTTRESS_IMAGENET``, else ``imagenet`` in the cache; it holds ``train/WNID/*.JPEG``
and ``val/WNID/*.JPEG``. ``test`` is the official validation set; ``val`` is held out of training.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from functools import lru_cache
from pathlib import Path

from buttress.data.core import DATASETS, Dataset
from buttress.data.datasets.folder_dataset import FolderDataset, imagenet_facts
from buttress.data.readers.folder import (
    ImageFile,
    class_names,
    image_file,
    list_files,
    select_split,
    split_validation,
)
from buttress.errors import DataError
from buttress.system.files import cache_dir
from buttress.system.progress import Progress
from buttress.system.rng import derive_seed

IMAGENET_VARIABLE = "BUTTRESS_IMAGENET"
VAL_FRACTION_DENOMINATOR = 100  # training images held out as val


@lru_cache(maxsize=1)
def imagenet_classes() -> dict[str, str]:
    """The 1,000 WordNet ids in the usual order of the labels, each with a name people know."""
    spec = importlib.util.find_spec("timm")  # finds its lists without importing it
    assert spec is not None
    assert spec.origin is not None
    lists = Path(spec.origin).parent / "data" / "_info"
    lemmas = (lists / "imagenet_synset_to_lemma.txt").read_text(encoding="utf-8").splitlines()
    name_of = {line.split("\t")[0]: line.split("\t")[1].partition(",")[0] for line in lemmas}
    wnids = (lists / "imagenet_synsets.txt").read_text(encoding="utf-8").split()
    times = Counter(name_of[wnid] for wnid in wnids)  # there are two cranes
    one_of_many = {w: f"{name_of[w]} ({w})" for w in wnids if times[name_of[w]] > 1}
    return {wnid: one_of_many.get(wnid, name_of[wnid]) for wnid in wnids}


def imagenet_folder() -> Path:
    override = os.environ.get(IMAGENET_VARIABLE)
    return Path(override).expanduser() if override else cache_dir() / "imagenet"


def require_split(split: str) -> Path:
    """Return the user's folder if it contains the split, sorted into class folders."""
    root = imagenet_folder()
    if not (root / split).is_dir():
        raise DataError(
            f"{root} must contain ILSVRC2012 as train/WNID/*.JPEG and val/WNID/*.JPEG, but "
            f"has no {split}/ folder. ImageNet cannot be downloaded automatically: get it "
            f"from https://image-net.org/download, or set {IMAGENET_VARIABLE} to its folder"
        )
    if missing := sorted(set(imagenet_classes()) - set(class_names(root / split))):
        raise DataError(
            f"{root / split} must contain one folder per class ({len(imagenet_classes()):,}), "
            f"but {missing[0]} and {len(missing) - 1:,} others are missing"
        )
    return root


def get_imagenet(progress: Progress) -> Path:
    require_split("val")
    return require_split("train")


@DATASETS.register(
    "imagenet",
    tags=("natural", "large", "local"),
    get=get_imagenet,
    facts=imagenet_facts(1_268_355, 12_812, 50_000, 1_000),
)
def imagenet(split: str, image_size: int | None, progress: Progress) -> Dataset:
    """ImageNet-1k from your own copy; test is its val, val is one in 100 training images."""
    return load_imagenet("imagenet", split, image_size, tuple(imagenet_classes()))


def load_imagenet(name: str, split: str, image_size: int | None, wnids: tuple[str, ...]) -> Dataset:
    """A split with the images of some of the classes."""
    folder_dataset = FolderDataset(
        name, imagenet_folder(), tuple(imagenet_classes()[wnid] for wnid in wnids)
    )
    return folder_dataset.load_split(split, split_files(split, wnids), image_size)


def split_files(split: str, wnids: tuple[str, ...]) -> list[ImageFile]:
    if split == "test":
        return select_classes(
            list_files(require_split("val"), "val", tuple(imagenet_classes())), wnids
        )
    root = require_split("train")
    train, val = split_validation(
        select_classes(list_files(root, "train", tuple(imagenet_classes())), wnids),
        VAL_FRACTION_DENOMINATOR,
    )
    return select_split(split, {"train": train, "val": val}, root)


def select_classes(files: list[ImageFile], wnids: tuple[str, ...]) -> list[ImageFile]:
    """The files of some classes, with labels that count these classes only."""
    all_wnids = tuple(imagenet_classes())
    if wnids == all_wnids:
        return files
    label_of = {all_wnids.index(wnid): label for label, wnid in enumerate(wnids)}
    return [f._replace(label=label_of[f.label]) for f in files if f.label in label_of]


NUM_CLASSES, DRAW_SEED = 100, 0
CLASS_LIST_FILE = "imagenet-100.txt"


@DATASETS.register(
    "imagenet-100",
    tags=("natural", "large", "local"),
    get=get_imagenet,
    facts=imagenet_facts(126_836, 1_281, 5_000, 100),  # about: it depends on the classes
)
def imagenet_100(split: str, image_size: int | None, progress: Progress) -> Dataset:
    """A hundred classes of your copy of ImageNet, drawn with seed 0 or listed in a file."""
    return load_imagenet("imagenet-100", split, image_size, imagenet_100_wnids())


def imagenet_100_wnids() -> tuple[str, ...]:
    """The chosen classes in ascending order."""
    path = imagenet_folder() / CLASS_LIST_FILE
    if path.is_file():
        return read_class_list(path.read_text(encoding="utf-8").split(), str(path))
    shuffled = sorted(
        imagenet_classes(), key=lambda wnid: derive_seed("imagenet-100", DRAW_SEED, wnid)
    )
    return tuple(sorted(shuffled[:NUM_CLASSES]))


def read_class_list(names: list[str], path: str) -> tuple[str, ...]:
    if unknown := [wnid for wnid in names if wnid not in imagenet_classes()]:
        raise DataError(f"{path} must list WordNet ids of ImageNet, but has {unknown[0]!r}")
    if len(names) != NUM_CLASSES or len(set(names)) != NUM_CLASSES:
        raise DataError(
            f"{path} must list {NUM_CLASSES} different classes, but lists {len(set(names))} "
            f"in {len(names)} lines"
        )
    return tuple(sorted(names))


NUM_IMAGES = 5_000
IMAGE_LIST_FILE = "imagenet_test_image_ids.txt"
PACKAGE_FOLDERS = ("helper_files", "data")  # in the package, new and old
IMAGE_LIST_URL = "https://github.com/RobustBench/robustbench/tree/master/robustbench/helper_files"


def get_imagenet_rb5000(progress: Progress) -> Path:
    find_image_list()
    return get_imagenet(progress)


@DATASETS.register(
    "imagenet-rb5000",
    paper="arXiv:2010.09670",
    tags=("natural", "large", "local"),
    get=get_imagenet_rb5000,
    facts=imagenet_facts(1_268_355, 12_812, 5_000, 1_000),
)
def imagenet_rb5000(split: str, image_size: int | None, progress: Progress) -> Dataset:
    """ImageNet-1k from your own copy, with the 5,000 images of RobustBench as test."""
    if split != "test":
        return load_imagenet("imagenet-rb5000", split, image_size, tuple(imagenet_classes()))
    folder_dataset = FolderDataset(
        "imagenet-rb5000", require_split("val"), tuple(imagenet_classes().values())
    )
    return folder_dataset.load_split(
        split, read_image_list(find_image_list(), folder_dataset.root), image_size
    )


def find_image_list() -> Path:
    local_list = imagenet_folder() / IMAGE_LIST_FILE
    if local_list.is_file():
        return local_list
    spec = importlib.util.find_spec("robustbench")  # finds it without running it
    for package in (spec and spec.submodule_search_locations) or ():
        for subfolder in PACKAGE_FOLDERS:
            if (Path(package) / subfolder / IMAGE_LIST_FILE).is_file():
                return Path(package) / subfolder / IMAGE_LIST_FILE
    raise DataError(
        f"imagenet-rb5000 needs the list of images of RobustBench: install the package "
        f"robustbench, or put {IMAGE_LIST_FILE} from {IMAGE_LIST_URL} into {imagenet_folder()}"
    )


def read_image_list(path: Path, root: Path) -> list[ImageFile]:
    """One ``WNID/IMAGE`` per line."""
    lines = path.read_text(encoding="utf-8").split()
    if len(lines) != NUM_IMAGES or len(set(lines)) != NUM_IMAGES:
        raise DataError(
            f"{path} must list {NUM_IMAGES:,} different images, but has {len(set(lines)):,} in "
            f"{len(lines):,} lines"
        )
    labels = {wnid: label for label, wnid in enumerate(imagenet_classes())}
    files = []
    for line in lines:
        wnid, _, name = line.partition("/")
        if wnid not in labels or not (root / "val" / wnid / name).is_file() or "/" in name:
            raise DataError(f"{path} lists {line!r}, but {root / 'val'} has no such image")
        files.append(image_file(f"val/{line}", labels[wnid]))
    return files
