"""What the named data sets that are folders of image files share: getting them, and their form."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from buttress.data.archives import check_md5, unpack
from buttress.data.cache import cache_dir, workspace
from buttress.data.core import LARGE_BUDGETS, Dataset, Facts
from buttress.data.download import download, first_that_works
from buttress.data.folder import File
from buttress.data.folder_pixels import FolderPixels
from buttress.errors import DataError, UserError
from buttress.progress import Progress
from buttress.threat import Norm

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
USUAL_SIZE = 224
SHORTER, OF_SIZE = 256, 224  # the usual evaluation on ImageNet: scale to 256, cut out 224
SMALLEST_SIZE = 16
ALL = "files"  # as a folder to be kept: everything that came out of the archives
ARCHIVES = (".tgz", ".gz", ".tar", ".zip")


def facts(train: int, test: int, num_classes: int, size: int = USUAL_SIZE) -> Facts:
    """What is known of a set of ImageNet's kind before it is here."""
    shape = (3, size, size)
    return Facts(train, test, num_classes, shape, IMAGENET_MEAN, IMAGENET_STD, LARGE_BUDGETS)


@dataclass(frozen=True)
class FolderSet:
    """Where a data set lies and what is known about it; ``size`` is that of its images if any."""

    name: str
    root: Path
    classes: tuple[str, ...]
    size: int | None = None
    with_margin: bool = True  # of which an eighth is cut off, as usual on ImageNet
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    budgets: Mapping[Norm, float] = field(default_factory=lambda: LARGE_BUDGETS)

    def dataset(self, split: str, files: list[File], image_size: int | None) -> Dataset:
        size = image_size or self.size or USUAL_SIZE
        if size < SMALLEST_SIZE:
            raise UserError(
                f"{self.name} needs image_size of {SMALLEST_SIZE} or more, but got {image_size}"
            )
        shorter = round(size * SHORTER / OF_SIZE) if self.with_margin else None
        return Dataset(
            name=self.name,
            split=split,
            pixels=FolderPixels(self.root, tuple(f.path for f in files), size, shorter),
            labels=torch.tensor([f.label for f in files], dtype=torch.int64),
            ids=torch.tensor([f.id for f in files], dtype=torch.int64),
            classes=self.classes,
            mean=self.mean,
            std=self.std,
            budgets=self.budgets,
        )


class Source(NamedTuple):
    """A file that must be had, and its published MD5."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


def get_folder(name: str, kept: str, sources: tuple[Source, ...], progress: Progress) -> Path:
    """The folder ``kept`` out of the sources, in the cache, after getting it if it is not there.

    Archives are unpacked, and archives inside them; other files are put beside what came out. The
    folder is moved into place when it is complete, so that it is whole or absent.
    """
    folder = cache_dir() / name
    if (folder / kept).is_dir():
        return folder / kept
    with workspace(folder) as work:
        out = work / "unpacked"
        try:
            for source in sources:
                place(fetch(source, folder, work, progress), out, progress)
            found = [out] if kept == ALL else sorted(p for p in out.rglob(kept) if p.is_dir())
            if not found:
                raise DataError(f"{sources[0].file} lacks the folder {kept}")
        except DataError as error:
            files = " and ".join(source.file for source in sources)
            raise DataError(
                f"{name} could not be got ({error}); put {files} into {folder} and run "
                f"`buttress data get {name}`"
            ) from None
        try:
            found[0].rename(folder / kept)
        except OSError:
            if not (folder / kept).is_dir():  # else another process was faster
                raise
    return folder / kept


def fetch(source: Source, folder: Path, work: Path, progress: Progress) -> Path:
    """The file the user has put into the folder, or else the download; its MD5 is checked."""

    def downloaded() -> Path:
        return check_md5(download(source.url, work / source.file, progress), source.md5)

    attempts = {f"download of {source.file}": downloaded}
    if (folder / source.file).is_file():
        own = partial(check_md5, folder / source.file, source.md5)
        attempts = {"your file": own, **attempts}
    return first_that_works(attempts)


def place(path: Path, out: Path, progress: Progress) -> None:
    out.mkdir(exist_ok=True)
    if path.suffix not in ARCHIVES:
        shutil.copyfile(path, out / path.name)
        return
    unpack(path, out, progress)
    # Names with a dot first are what macOS adds to an archive.
    for inner in sorted(p for p in out.rglob("[!.]*.tar.gz") if p.is_file()):
        unpack(inner, out, progress)
        inner.unlink()


def root_of(name: str, kept: str) -> Path:
    root = cache_dir() / name / kept
    if not root.is_dir():
        raise DataError(f"{name} is not on this machine; get it with `buttress data get {name}`")
    return root
