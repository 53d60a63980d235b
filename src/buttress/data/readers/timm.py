"""``timm:...``: the data that timm reads, by timm's names, where images can be addressed.

- ``timm:wds@PATH``: shards of webdataset (``.jpg`` or ``.png`` with ``.cls``);
- ``timm:tar@PATH``: tar files with class folders, or one tar file per class;
- ``timm:folder@PATH``: as ``folder:PATH``;
- ``timm:hfds/NAME``, or ``timm:hfds/NAME@CACHE``: a Hugging Face dataset.

Shards are assigned to train, val and test by ``_info.json``, or by these words in their paths. Ids
are hashes of shard and name. Streaming-only readers are rejected, because they give images no id.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch

from buttress.data.archives import check_member_path
from buttress.data.checks import check_class_count
from buttress.data.core import READERS, Dataset, budgets_of_size
from buttress.data.readers.folder import (
    STATISTICS_SAMPLE,
    ImageFile,
    default_encoded_size,
    file_dataset,
    folder,
    image_file,
    select_split,
    split_validation,
)
from buttress.data.readers.hugging_face import load_hugging_face
from buttress.data.readers.tar import TarPixels, read_tar_index, tar_stats
from buttress.errors import DataError, UserError
from buttress.system.progress import Progress

READER_KINDS = ("wds", "tar", "folder", "hfds")
INFO_FILES = ("_info.json", "info.json")
SPLIT_WORDS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val",
    "test": "test", "testing": "test",
}  # fmt: skip


class TimmDatasetName(NamedTuple):
    kind: str
    name: str
    root: str


def parse_timm_name(text: str) -> TimmDatasetName:
    head, _, root = text.partition("@")
    kind, _, name = head.partition("/")
    if kind not in READER_KINDS:
        raise UserError(
            "a timm dataset is written timm:KIND@PATH with KIND one of "
            f"{', '.join(READER_KINDS)}, but got {text!r} (other timm readers are "
            "streaming-only and give images no stable id)"
        )
    if kind == "hfds" and not name:
        raise UserError(f"a Hugging Face dataset is written timm:hfds/NAME, but got {text!r}")
    if kind != "hfds" and not (root or name):
        raise UserError(f"a {kind} dataset is written timm:{kind}@PATH, but got {text!r}")
    return TimmDatasetName(kind, name, root if root or kind == "hfds" else name)


def dataset_path(text: str) -> Path:
    name = parse_timm_name(text)
    return Path(name.root or name.name).expanduser()


@READERS.register("timm", place=dataset_path)
def timm(path: str, split: str, image_size: int | None, progress: Progress) -> Dataset:
    """Data that timm reads: ``wds@PATH``, ``tar@PATH``, ``folder@PATH`` or ``hfds/NAME``."""
    kind, name, root = parse_timm_name(path)
    if kind == "folder":
        return folder(root, split, image_size, progress)
    if kind == "hfds":
        return load_hugging_face(name, root or None, split, image_size)
    return load_tar(path, Path(root).expanduser(), split, image_size)


def load_tar(text: str, root: Path, split: str, image_size: int | None) -> Dataset:
    with_cls = parse_timm_name(text).kind == "wds"
    shards = shards_by_split(root)
    all_shards = tuple(shard for names in shards.values() for shard in names)
    classes, parts, where = index_shards(root, shards, with_cls=with_cls)
    files = select_split(split, parts, root)

    def rows(files: list[ImageFile]) -> list[tuple[int, int, int]]:
        return [where[file.path] for file in files]

    sample = rows((parts.get("train") or files)[:STATISTICS_SAMPLE])
    first = TarPixels(root, all_shards, torch.tensor(sample[:1]), 0)
    size = image_size or default_encoded_size(first)
    stats = tar_stats(root, all_shards, tuple(sample), size)
    pixels = TarPixels(root, all_shards, torch.tensor(rows(files)), size)
    budgets = budgets_of_size(size)
    return file_dataset(f"timm:{text}", split, files, pixels, classes, stats, budgets)


def index_shards(
    root: Path, shards: dict[str, list[str]], *, with_cls: bool
) -> tuple[tuple[str, ...], dict[str, list[ImageFile]], dict[str, tuple[int, int, int]]]:
    """The classes, the files of each part in order of id, and where each file lies."""
    number = 0
    where: dict[str, tuple[int, int, int]] = {}
    labels: dict[str, dict[str, str]] = defaultdict(dict)
    for part, names in shards.items():
        for shard in names:
            for member in read_tar_index(root / shard, has_label_files=with_cls):
                path = f"{shard}/{member.name}"
                where[path] = (number, member.start, member.length)
                labels[part][path] = member.label
            number += 1
    if empty := [part for part in shards if not labels[part]]:
        raise DataError(f"the {empty[0]} shards in {root} must contain images, but contain none")
    classes = class_names_of_shards(labels, root, with_cls=with_cls)
    label_of = {name: label for label, name in enumerate(classes)}
    parts = {
        part: sorted(image_file(path, label_of[label]) for path, label in labels_by_path.items())
        for part, labels_by_path in labels.items()
    }
    if "val" not in parts and "train" in parts:
        parts["train"], parts["val"] = split_validation(parts["train"])
    return classes, parts, where


def class_names_of_shards(
    labels: dict[str, dict[str, str]], root: Path, *, with_cls: bool
) -> tuple[str, ...]:
    if with_cls:
        last = max(
            int(label) for labels_by_path in labels.values() for label in labels_by_path.values()
        )
        return tuple(str(label) for label in range(check_class_count(last + 1)))
    train_classes = set((labels.get("train") or next(iter(labels.values()))).values())
    for part, labels_by_path in labels.items():
        if unknown_classes := sorted(set(labels_by_path.values()) - train_classes):
            raise DataError(
                f"the {part} shards in {root} contain the class {unknown_classes[0]!r}, which "
                "train does not have"
            )
    return tuple(sorted(train_classes))


def shards_by_split(root: Path) -> dict[str, list[str]]:
    """The shards of each part, relative to the root, in order of their names."""
    if not root.is_dir():
        raise DataError(f"{root} must be a folder with .tar files, but is not a folder")
    for name in INFO_FILES:
        if (root / name).is_file():
            return read_shard_list(root / name)
    paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.tar"))
    if not paths:
        raise DataError(f"{root} must contain .tar files, but contains none")
    shards: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        parts = [SPLIT_WORDS[w] for w in re.findall("[a-z]+", path.lower()) if w in SPLIT_WORDS]
        shards[parts[0] if parts else ""].append(path)
    if set(shards) == {""}:
        return {"train": shards[""]}
    if unassigned := shards.pop("", []):
        raise DataError(
            f"each shard path in {root} must contain train, val or test, but {unassigned[0]} "
            "does not"
        )
    return dict(shards)


def read_shard_list(path: Path) -> dict[str, list[str]]:
    try:
        splits = json.loads(path.read_text(encoding="utf-8"))["splits"]
        filenames = {name: [str(f) for f in entry["filenames"]] for name, entry in splits.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(
            f"{path} must list the filenames of each of the splits as timm has it, but does not"
        ) from None
    shards = {
        SPLIT_WORDS[name]: files
        for name, files in filenames.items()
        if name in SPLIT_WORDS and files
    }
    if not shards:
        raise DataError(f"{path} must list shards of train, val or test, but lists none")
    for shard in (shard for files in shards.values() for shard in files):
        check_member_path(path, shard)
        if not (path.parent / shard).is_file():
            raise DataError(f"{path} lists {shard}, but that file does not exist")
    return shards
