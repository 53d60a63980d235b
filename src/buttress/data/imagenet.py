"""ImageNet (ILSVRC 2012) from a folder of the user's own: it may not be handed on.

The folder is ``$BUTTRESS_IMAGENET``, else ``imagenet`` in the cache; it holds ``train/WNID/*.JPEG``
and ``val/WNID/*.JPEG``. ``test`` is the official validation set; ``val`` is held out of training.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from functools import lru_cache
from pathlib import Path

from buttress.data.cache import cache_dir
from buttress.data.core import DATASETS, SILENT, Dataset
from buttress.data.folder import File, class_names, files_of, hold_out, list_files
from buttress.data.folder_sets import FolderSet, facts
from buttress.errors import DataError
from buttress.progress import Progress

VARIABLE = "BUTTRESS_IMAGENET"
ONE_IN = 100  # training images held out as val


@lru_cache(maxsize=1)
def wordnet() -> dict[str, str]:
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


def folder() -> Path:
    own = os.environ.get(VARIABLE)
    return Path(own).expanduser() if own else cache_dir() / "imagenet"


def root_with(part: str) -> Path:
    """The user's folder, if it holds the part, sorted into class folders."""
    root = folder()
    if not (root / part).is_dir():
        raise DataError(
            f"{root} must hold ILSVRC2012 as train/WNID/*.JPEG and val/WNID/*.JPEG, but has no "
            f"{part}; it cannot be downloaded here: get it from https://image-net.org/download, or "
            f"set {VARIABLE} to the folder that has it"
        )
    if missing := sorted(set(wordnet()) - set(class_names(root / part))):
        raise DataError(
            f"{root / part} must hold a folder for each of the {len(wordnet()):,} classes, but "
            f"lacks {missing[0]} and {len(missing) - 1:,} others; sort the images into them"
        )
    return root


def get_imagenet(progress: Progress) -> Path:
    root_with("val")
    return root_with("train")


@DATASETS.register(
    "imagenet",
    tags=("natural", "large", "local"),
    get=get_imagenet,
    facts=facts(1_268_355, 50_000, 1_000),
)
def imagenet(split: str, *, image_size: int | None = None, progress: Progress = SILENT) -> Dataset:
    """ImageNet-1k from your own copy; test is its val, val is one in 100 training images."""
    return load("imagenet", split, image_size, tuple(wordnet()))


def load(name: str, split: str, image_size: int | None, wnids: tuple[str, ...]) -> Dataset:
    """A split with the images of some of the classes."""
    found = FolderSet(name, folder(), tuple(wordnet()[wnid] for wnid in wnids))
    return found.dataset(split, files_in(split, wnids), image_size)


def files_in(split: str, wnids: tuple[str, ...]) -> list[File]:
    if split == "test":
        return chosen(list_files(root_with("val"), "val", tuple(wordnet())), wnids)
    root = root_with("train")
    train, val = hold_out(chosen(list_files(root, "train", tuple(wordnet())), wnids), ONE_IN)
    return files_of(split, {"train": train, "val": val}, root)


def chosen(files: list[File], wnids: tuple[str, ...]) -> list[File]:
    """The files of some classes, with labels that count these classes only."""
    every = tuple(wordnet())
    if wnids == every:
        return files
    label_of = {every.index(wnid): label for label, wnid in enumerate(wnids)}
    return [f._replace(label=label_of[f.label]) for f in files if f.label in label_of]
