"""Registered datasets stored as folders of image files: download and layout."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from buttress.data.archives import check_md5, unpack
from buttress.data.core import IMAGENET_BUDGETS, Dataset, DatasetFacts
from buttress.data.download import download, try_sources, workspace
from buttress.data.pixels import ChannelStats
from buttress.data.readers.folder import FolderPixels, ImageFile, file_dataset
from buttress.errors import DataError, UserError
from buttress.system.files import cache_dir
from buttress.system.progress import Progress
from buttress.threats.norm_ball import Norm

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DEFAULT_IMAGENET_SIZE = 224
RESIZE_SHORTER_SIDE, CENTER_CROP = 256, 224  # the usual evaluation on ImageNet
MIN_IMAGENET_SIZE = 16
ALL_FILES = "files"  # as a folder to be kept: everything that came out of the archives
ARCHIVE_SUFFIXES = (".tgz", ".gz", ".tar", ".zip")


def imagenet_facts(
    train: int, val: int, test: int, num_classes: int, size: int = DEFAULT_IMAGENET_SIZE
) -> DatasetFacts:
    """Facts of an ImageNet-like dataset, known before it is downloaded."""
    shape = (3, size, size)
    return DatasetFacts(
        train, val, test, num_classes, shape, IMAGENET_MEAN, IMAGENET_STD, IMAGENET_BUDGETS
    )


@dataclass(frozen=True)
class FolderDataset:
    """Location and facts of a dataset; ``size`` is the size of its images, if fixed."""

    name: str
    root: Path
    classes: tuple[str, ...]
    size: int | None = None
    center_crop: bool = True  # of which an eighth is cut off, as usual on ImageNet
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    budgets: Mapping[Norm, float] = field(default_factory=lambda: IMAGENET_BUDGETS)

    def load_split(self, split: str, files: list[ImageFile], image_size: int | None) -> Dataset:
        size = image_size or self.size or DEFAULT_IMAGENET_SIZE
        if size < MIN_IMAGENET_SIZE:
            raise UserError(
                f"`image_size >= {MIN_IMAGENET_SIZE}` must hold for {self.name}, but got "
                f"image_size={image_size}"
            )
        shorter = round(size * RESIZE_SHORTER_SIDE / CENTER_CROP) if self.center_crop else None
        pixels = FolderPixels(self.root, tuple(f.path for f in files), size, shorter)
        stats = ChannelStats(self.mean, self.std)
        return file_dataset(self.name, split, files, pixels, self.classes, stats, self.budgets)


class DownloadFile(NamedTuple):
    """A file to download, with its published MD5."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


def download_folder(
    name: str, kept_folder: str, sources: tuple[DownloadFile, ...], progress: Progress
) -> Path:
    """Return the cached folder ``kept_folder`` of the sources; download it if needed.

    Archives are unpacked, and archives inside them; other files are put beside what came out. The
    folder is moved into place when it is complete, so that it is never partial.
    """
    folder = cache_dir() / name
    if (folder / kept_folder).is_dir():
        return folder / kept_folder
    with workspace(folder) as work:
        out = work / "unpacked"
        try:
            for source in sources:
                place_file(fetch_file(source, folder, work, progress), out, progress)
            candidates = sorted(p for p in out.rglob(kept_folder) if p.is_dir())
            candidates = [out] if kept_folder == ALL_FILES else candidates
            if not candidates:
                raise DataError(f"{sources[0].file} does not contain the folder {kept_folder}")
        except DataError as error:
            files = " and ".join(source.file for source in sources)
            raise DataError(
                f"{name} could not be downloaded ({error}); put {files} into {folder} and run "
                f"`buttress data get {name}`"
            ) from None
        if hasattr(os, "sync"):
            os.sync()  # the files before the name: a folder that has it is complete
        try:
            candidates[0].rename(folder / kept_folder)
        except OSError:
            if not (folder / kept_folder).is_dir():  # else another process was faster
                raise
    return folder / kept_folder


def fetch_file(source: DownloadFile, folder: Path, work: Path, progress: Progress) -> Path:
    """The file the user has put into the folder, or else the download; its MD5 is checked."""

    def download_and_check() -> Path:
        return check_md5(download(source.url, work / source.file, progress), source.md5)

    attempts = {f"download of {source.file}": download_and_check}
    if (folder / source.file).is_file():
        local_file = partial(check_md5, folder / source.file, source.md5)
        attempts = {"your file": local_file, **attempts}
    return try_sources(attempts)


def place_file(path: Path, out: Path, progress: Progress) -> None:
    out.mkdir(exist_ok=True)
    if path.suffix not in ARCHIVE_SUFFIXES:
        shutil.copyfile(path, out / path.name)
        return
    unpack(path, out, progress)
    # Names with a dot first are what macOS adds to an archive.
    for inner in sorted(p for p in out.rglob("[!.]*.tar.gz") if p.is_file()):
        unpack(inner, out, progress)
        inner.unlink()


def dataset_root(name: str, kept_folder: str) -> Path:
    root = cache_dir() / name / kept_folder
    if not root.is_dir():
        raise DataError(f"{name} is not downloaded; run `buttress data get {name}`")
    return root
