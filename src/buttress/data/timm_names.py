"""``timm:...``: the data that timm reads, by timm's names, where images can be addressed.

- ``timm:wds@PATH``: shards of webdataset (``.jpg`` or ``.png`` with ``.cls``);
- ``timm:tar@PATH``: tar files with class folders, or one tar file per class;
- ``timm:folder@PATH``: as ``folder:PATH``;
- ``timm:hfds/NAME``, or ``timm:hfds/NAME@CACHE``: a data set of Hugging Face.

Which shards belong to train, val and test is told by ``_info.json``, or by these words in their
paths. Ids are hashes of shard and name. Readers that only stream give no image an id: they are
refused.
"""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch

from buttress.data.archives import check_place
from buttress.data.arrays import check_class_count
from buttress.data.core import LARGE_BUDGETS, NATURAL_BUDGETS, READERS, SILENT, Dataset
from buttress.data.folder import (
    LARGEST_SMALL,
    SAMPLE,
    USUAL_SIZE,
    File,
    file_at,
    files_of,
    folder,
    hold_out,
)
from buttress.data.hf_pixels import load_hf
from buttress.data.streamed import read_size
from buttress.data.tar_pixels import TarPixels, read_index, tar_stats
from buttress.errors import DataError, UserError
from buttress.progress import Progress

KINDS = ("wds", "tar", "folder", "hfds")
INFO = ("_info.json", "info.json")
WORDS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"}
WORDS |= {"test": "test", "testing": "test"}


class Name(NamedTuple):
    kind: str
    name: str
    root: str


def parse(text: str) -> Name:
    head, _, root = text.partition("@")
    kind, _, name = head.partition("/")
    if kind not in KINDS:
        raise UserError(
            f"after `timm:` must come one of {', '.join(KINDS)}, as in timm:wds@PATH, but got "
            f"{text!r}; other readers of timm only stream, so that no image could have an id"
        )
    if kind == "hfds" and not name:
        raise UserError(f"a data set of Hugging Face is written timm:hfds/NAME, but got {text!r}")
    if kind != "hfds" and not (root or name):
        raise UserError(f"write timm:{kind}@PATH to read {kind} from a path, but got {text!r}")
    return Name(kind, name, root if root or kind == "hfds" else name)


def place_of(text: str) -> Path:
    name = parse(text)
    return Path(name.root or name.name).expanduser()


@READERS.register("timm", place=place_of)
def timm(
    path: str, split: str, *, image_size: int | None = None, progress: Progress = SILENT
) -> Dataset:
    """Data that timm reads: ``wds@PATH``, ``tar@PATH``, ``folder@PATH`` or ``hfds/NAME``."""
    kind, name, root = parse(path)
    if kind == "folder":
        return folder(root, split, image_size=image_size, progress=progress)
    if kind == "hfds":
        return load_hf(name, root or None, split, image_size)
    return load_tar(path, Path(root).expanduser(), split, image_size)


def load_tar(text: str, root: Path, split: str, image_size: int | None) -> Dataset:
    with_cls = parse(text).kind == "wds"
    shards = shards_of(root)
    every = tuple(shard for names in shards.values() for shard in names)
    classes, parts, where = index_of(root, shards, with_cls=with_cls)
    files = files_of(split, parts, root)

    def rows(files: list[File]) -> list[tuple[int, int, int]]:
        return [where[file.path] for file in files]

    sample = rows((parts.get("train") or files)[:SAMPLE])
    size = image_size or usual_size(TarPixels(root, every, torch.tensor(sample[:1]), 0))
    mean, std = tar_stats(root, every, tuple(sample), size)
    return Dataset(
        name=f"timm:{text}",
        split=split,
        pixels=TarPixels(root, every, torch.tensor(rows(files)), size),
        labels=torch.tensor([file.label for file in files]),
        ids=torch.tensor([file.id for file in files]),
        classes=classes,
        mean=mean,
        std=std,
        budgets=NATURAL_BUDGETS if size <= LARGEST_SMALL else LARGE_BUDGETS,
    )


def usual_size(pixels: TarPixels) -> int:
    """That of the first image if it is at most 64 pixels, else 224."""
    name, content = pixels.encoded(0)
    first = read_size(io.BytesIO(content), name)
    return min(first) if max(first) <= LARGEST_SMALL else USUAL_SIZE


def index_of(
    root: Path, shards: dict[str, list[str]], *, with_cls: bool
) -> tuple[tuple[str, ...], dict[str, list[File]], dict[str, tuple[int, int, int]]]:
    """The classes, the files of each part in order of id, and where each file lies."""
    number = 0
    where: dict[str, tuple[int, int, int]] = {}
    labels: dict[str, dict[str, str]] = defaultdict(dict)
    for part, names in shards.items():
        for shard in names:
            for member in read_index(root / shard, with_cls=with_cls):
                path = f"{shard}/{member.name}"
                where[path] = (number, member.start, member.length)
                labels[part][path] = member.label
            number += 1
    if empty := [part for part in shards if not labels[part]]:
        raise DataError(f"the {empty[0]} shards in {root} must hold images, but hold none")
    classes = class_list(labels, root, with_cls=with_cls)
    label_of = {name: label for label, name in enumerate(classes)}
    parts = {
        part: sorted(file_at(path, label_of[label]) for path, label in found.items())
        for part, found in labels.items()
    }
    if "val" not in parts and "train" in parts:
        parts["train"], parts["val"] = hold_out(parts["train"])
    return classes, parts, where


def class_list(labels: dict[str, dict[str, str]], root: Path, *, with_cls: bool) -> tuple[str, ...]:
    if with_cls:
        last = max(int(label) for found in labels.values() for label in found.values())
        return tuple(str(label) for label in range(check_class_count(last + 1)))
    known = set((labels.get("train") or next(iter(labels.values()))).values())
    for part, found in labels.items():
        if strange := sorted(set(found.values()) - known):
            raise DataError(
                f"the {part} shards in {root} hold the class {strange[0]!r}, which train does not"
            )
    return tuple(sorted(known))


def shards_of(root: Path) -> dict[str, list[str]]:
    """The shards of each part, relative to the root, in order of their names."""
    if not root.is_dir():
        raise DataError(f"{root} must be a folder that holds .tar files, but is none")
    for name in INFO:
        if (root / name).is_file():
            return listed(root / name)
    paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.tar"))
    if not paths:
        raise DataError(f"{root} must hold .tar files, but holds none")
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        parts = [WORDS[w] for w in re.findall("[a-z]+", path.lower()) if w in WORDS]
        found[parts[0] if parts else ""].append(path)
    if set(found) == {""}:
        return {"train": found[""]}
    if odd := found.pop("", []):
        raise DataError(
            f"the path of each shard in {root} must say train, val or test, but {odd[0]} does not"
        )
    return dict(found)


def listed(path: Path) -> dict[str, list[str]]:
    try:
        splits = json.loads(path.read_text(encoding="utf-8"))["splits"]
        found = {name: [str(f) for f in entry["filenames"]] for name, entry in splits.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(
            f"{path} must list the filenames of each of the splits as timm has it, but does not"
        ) from None
    known = {WORDS[name]: files for name, files in found.items() if name in WORDS and files}
    if not known:
        raise DataError(f"{path} must list shards of train, val or test, but lists none")
    for shard in (shard for files in known.values() for shard in files):
        check_place(path, shard)
        if not (path.parent / shard).is_file():
            raise DataError(f"{path} lists {shard}, but there is no such file beside it")
    return known
