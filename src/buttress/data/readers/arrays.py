"""Extra training images: synthetic ones (``npz:PATH``) and pseudo-labeled ones (``ti500k:PATH``).

Their pixels are written once to the cache as a plain array, which is then mapped, not loaded, so
that millions of images take no memory. They have a train split only.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from buttress.data.archives import ARCHIVE_ERRORS, DISK_ERRORS, ArrayUnpickler
from buttress.data.checks import check_labels
from buttress.data.core import READERS, Dataset, budgets_of_size
from buttress.data.datasets.cifar import CIFAR10
from buttress.data.download import workspace
from buttress.data.pixels import MemoryPixels, channel_stats
from buttress.errors import DataError, UserError
from buttress.system.files import cache_dir
from buttress.system.progress import Progress
from buttress.system.rng import derive_seed

IMAGES, LABELS = "images.npy", "labels.npy"
STATISTICS_SAMPLE = 2_000  # images that give mean and std
SMALL_FILE_BYTES = 64 << 20
MAX_COMPRESSION_RATIO = 50  # of images and labels in larger files
ArrayWriter = Callable[[Path, Path, Progress], None]  # from a file to a folder


@READERS.register("npz")
def npz(path: str, split: str, image_size: int | None, progress: Progress) -> Dataset:
    """Synthetic images in an .npz file with ``image`` (N, H, W, 3) uint8 and ``label``."""
    folder = cached_arrays(Path(path), unpack_npz, progress)
    return load_extra_dataset(f"npz:{path}", split, folder, None, image_size)


@READERS.register("ti500k", paper="arXiv:1905.13736")
def ti500k(path: str, split: str, image_size: int | None, progress: Progress) -> Dataset:
    """The 500,000 pseudo-labeled images for CIFAR-10, from their pickle."""
    folder = cached_arrays(Path(path), unpack_ti500k, progress)
    return load_extra_dataset(f"ti500k:{path}", split, folder, CIFAR10.classes, image_size)


def load_extra_dataset(
    name: str, split: str, folder: Path, classes: tuple[str, ...] | None, image_size: int | None
) -> Dataset:
    if split not in ("train", "train+val"):
        raise UserError(f"{name} has a train split only, but got split={split!r}")
    # Copy on write: torch wants memory it may write to, and the file must never change.
    images = torch.from_numpy(np.load(folder / IMAGES, mmap_mode="c")).permute(0, 3, 1, 2)
    if image_size not in (None, images.shape[2]):
        raise UserError(
            f"{name} has images of {images.shape[2]}x{images.shape[2]} pixels, but got "
            f"image_size={image_size}"
        )
    count = None if classes is None else len(classes)
    labels = check_labels(np.load(folder / LABELS), len(images), count)
    names = classes or tuple(str(label) for label in range(int(labels.max()) + 1))
    pixels = MemoryPixels(images)
    mean, std = channel_stats(pixels.select(torch.arange(min(STATISTICS_SAMPLE, len(images)))))
    ids = torch.arange(len(images))
    budgets = budgets_of_size(pixels.shape[2])
    return Dataset(name, split, pixels, labels, ids, names, mean, std, budgets)


def cached_arrays(path: Path, write: ArrayWriter, progress: Progress) -> Path:
    """The folder of the cache with the arrays of a file, made if the file is new or changed."""
    path = path.expanduser()
    if not path.is_file():
        raise DataError(f"{path} must be a file with images and labels, but does not exist")
    status = path.stat()
    key = derive_seed(str(path.resolve()), status.st_size, status.st_mtime_ns)
    folder = cache_dir() / "extra" / f"{path.stem}-{key:016x}"
    if folder.is_dir():
        return folder
    with workspace(folder.parent) as work:
        out = work / "arrays"
        out.mkdir()
        write(path, out, progress)
        check_images(np.load(out / IMAGES, mmap_mode="r"), path)
        try:
            check_labels(np.load(out / LABELS), len(np.load(out / IMAGES, mmap_mode="r")), None)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        try:
            out.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    return folder


def check_images(images: NDArray[Any], path: Path) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or not images.size:
        raise DataError(
            f"{path} must contain images as uint8 of shape (N, H, W, 3), but has "
            f"{images.dtype} of shape {images.shape}"
        )


def unpack_npz(path: Path, folder: Path, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            for key, name in (("image", IMAGES), ("label", LABELS)):
                if f"{key}.npy" not in archive.namelist():
                    member_names = ", ".join(n.removesuffix(".npy") for n in archive.namelist())
                    raise DataError(
                        f"{path} must contain `image` and `label`, but contains {member_names}"
                    )
                check_compression(archive.getinfo(f"{key}.npy"), path)
                with archive.open(f"{key}.npy") as stream, (folder / name).open("wb") as out:
                    shutil.copyfileobj(stream, out, 1 << 20)
        for name in (IMAGES, LABELS):
            if not isinstance(np.load(folder / name, mmap_mode="r"), np.ndarray):
                raise ValueError(f"{name} is an archive, not an array")
    except (*ARCHIVE_ERRORS, RuntimeError) as error:  # type: ignore[misc]
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is not a complete .npz file of arrays: {reason}") from None


def check_compression(info: zipfile.ZipInfo, path: Path) -> None:
    """Raise `DataError` for compression ratios that images cannot have (zip bombs)."""
    if info.file_size > max(SMALL_FILE_BYTES, MAX_COMPRESSION_RATIO * info.compress_size):
        raise DataError(
            f"{path} would unpack to {info.file_size} bytes, which is not plausible for images"
        )


def unpack_ti500k(path: Path, folder: Path, progress: Progress) -> None:
    progress.log(f"reading {path.name} of {os.path.getsize(path) >> 20} MiB, once")
    try:
        with path.open("rb") as stream:
            content = ArrayUnpickler(stream).load()
    # A damaged pickle can raise nearly anything.
    except Exception as error:
        raise DataError(f"{path} is not a complete pickle of arrays: {error}") from None
    if not isinstance(content, dict) or not {"data", "extrapolated_targets"} <= content.keys():
        raise DataError(
            f"{path} must contain `data` and `extrapolated_targets`, but one is missing"
        )
    images, labels = np.asarray(content["data"]), np.asarray(content["extrapolated_targets"])
    check_images(images, path)
    np.save(folder / IMAGES, images, allow_pickle=False)
    if labels.dtype.kind not in "iu":
        raise DataError(f"{path} must contain integer labels, but has {labels.dtype}")
    np.save(folder / LABELS, labels.astype(np.int64), allow_pickle=False)
