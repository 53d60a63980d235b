"""Datasets: images in [0, 1] with labels and permanent sample ids, loaded by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from buttress.data.checks import check_ids, check_images, check_labels
from buttress.data.pixels import (
    MemoryPixels,
    PixelSource,
    channel_stats,
    hash_images,
    to_float,
)
from buttress.errors import UserError
from buttress.registry import Registry
from buttress.results.core import check_split
from buttress.system.files import cache_dir, remove_temporary_files
from buttress.system.progress import Progress, SilentProgress
from buttress.system.signatures import explain_arguments
from buttress.threats.norm_ball import Norm

SILENT_PROGRESS: Progress = SilentProgress()
# The usual eps on natural images of 32x32: RobustBench for Linf and L2, arXiv:2103.01208 for L1.
CIFAR_BUDGETS: Mapping[Norm, float] = {"Linf": 8 / 255, "L2": 0.5, "L1": 12.0}
# On images of about 224x224: RobustBench for Linf, the models of arXiv:2007.08489 for L2; L1 is
# reported at several sizes, of which this is a small one.
IMAGENET_BUDGETS: Mapping[Norm, float] = {"Linf": 4 / 255, "L2": 3.0, "L1": 60.0}
MAX_SMALL_IMAGE = 64  # pixels; up to here images are small ones, as in CIFAR


def budgets_of_size(size: int) -> Mapping[Norm, float]:
    """The usual eps for images of this size, for datasets that have none of their own."""
    return CIFAR_BUDGETS if size <= MAX_SMALL_IMAGE else IMAGENET_BUDGETS


class Batch(NamedTuple):
    x: Tensor  # (n, C, H, W) float32 in [0, 1]
    y: Tensor  # (n,) int64
    ids: Tensor  # (n,) int64


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """One split of a dataset; ``mean`` and ``std`` are those of its training images.

    Datasets used for transfer from ImageNet have the mean and std of ImageNet.
    """

    name: str
    split: str
    pixels: PixelSource
    labels: Tensor  # (N,) int64
    ids: Tensor  # (N,) int64, permanent: the same image has the same id in every split and subset
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    budgets: Mapping[Norm, float]  # the eps that suites use where none is given
    dropped_files: tuple[str, ...] = ()  # of the folder, because they are in no class or no image
    empty_classes: tuple[str, ...] = ()  # of the whole split

    def __post_init__(self) -> None:
        assert len(self.pixels) == len(self.labels) == len(self.ids)

    @classmethod
    def from_arrays(
        cls,
        images: Any,
        labels: Any,
        *,
        ids: Any = None,
        name: str = "arrays",
        classes: Sequence[str] | None = None,
    ) -> Dataset:
        """A dataset of your own numpy or torch arrays, (N, C, H, W) in uint8 or float in [0, 1].

        Pass ``classes`` if some classes may have no image here; mean and std are of these images.
        """
        x = check_images(images)
        y = check_labels(labels, len(x), None if classes is None else len(classes))
        names = map(str, range(int(y.max()) + 1)) if classes is None else classes
        pixels = MemoryPixels(x)
        mean, std = channel_stats(pixels)
        numbers = check_ids(ids, len(x))
        budgets = budgets_of_size(x.shape[2])
        return cls(name, "all", pixels, y, numbers, tuple(names), mean, std, budgets)

    def __len__(self) -> int:
        return len(self.labels)

    @overload
    def __getitem__(self, position: slice) -> Dataset: ...

    @overload
    def __getitem__(self, position: int) -> tuple[Tensor, int]: ...

    def __getitem__(self, position: int | slice) -> tuple[Tensor, int] | Dataset:
        """Image (C, H, W) and label, as datasets of torch give them; of a slice, a `Dataset`."""
        if not isinstance(position, (int, slice)):
            raise UserError(
                f"a Dataset is one split, whose images have positions, but got {position!r}; "
                "bt.load_dataset(NAME, split='train') loads another split"
            )
        rows = torch.arange(len(self))[position]  # raises IndexError beyond the end
        if isinstance(position, slice):
            return self.select(rows)
        return self.take([int(rows)]).x[0], int(self.labels[position])

    def __getattr__(self, name: str) -> Any:
        ours = {"targets": "labels", "data": "images"}.get(name)
        advice = f"; use .{ours}" if ours else ""
        raise AttributeError(f"a Dataset has no attribute {name!r}{advice}")

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        split = f"{len(self):,} images of {shape}, {self.num_classes} classes"
        return f"Dataset({self.name!r}, {self.split!r}, {split})"

    def _repr_html_(self) -> str:
        from buttress.data.thumbnails import dataset_html

        return dataset_html(self)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of each image."""
        return self.pixels.shape[1:]

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def images(self) -> Tensor:
        """All images as one new float32 tensor; `batches` needs less memory."""
        return to_float(self.pixels.take(torch.arange(len(self))))

    def take(self, indices: Tensor | Sequence[int]) -> Batch:
        rows = as_indices(indices)
        return Batch(to_float(self.pixels.take(rows)), self.labels[rows], self.ids[rows])

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """All images in order; the last batch may be smaller."""
        if batch_size < 1:
            raise UserError(f"`batch_size >= 1` must hold, but got batch_size={batch_size}")
        return (
            self.take(rows)
            for rows in torch.arange(len(self)).split(min(batch_size, max(1, len(self))))
        )

    def select(self, indices: Tensor | Sequence[int]) -> Dataset:
        """Some of the images, by positions or by a mask, in this order; no pixel is copied."""
        rows = as_indices(indices)
        pixels = self.pixels.select(rows)
        return replace(self, pixels=pixels, labels=self.labels[rows], ids=self.ids[rows])

    @cached_property
    def image_hashes(self) -> NDArray[np.uint64] | None:
        """(N,) a hash of the pixels of each image; None where they are not in memory."""
        return hash_images(self.pixels)

    def fingerprint(self) -> str:
        """A hash of name, ids, labels and pixels: the same for the same data on every machine."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        # The path of a folder is not part of its name, so that it can be moved.
        head = [self.name.partition(":")[0], self.pixels.shape]
        state = hashlib.sha256(json.dumps(head).encode())
        for numbers in (self.ids, self.labels):
            state.update(numbers.contiguous().numpy().astype("<i8").tobytes())
        for piece in self.pixels.fingerprint_bytes():
            state.update(piece)
        return state.hexdigest()


# Arguments of other libraries, and what to do in place of them.
LOAD_HINTS = {
    "train": "the split is split='train', 'val' or 'test'",
    "root": "datasets are in the cache folder, which BUTTRESS_CACHE names; a folder of images "
    "is named 'folder:PATH'",
    "download": "`buttress data get NAME` downloads a dataset",
    "transform": "images are in [0, 1] without augmentation; image_size= resizes them",
}


class DatasetFacts(NamedTuple):
    """Metadata of a dataset that is known without downloading it, enough to plan a run."""

    num_train: int  # images
    num_val: int
    num_test: int
    num_classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    budgets: Mapping[Norm, float] = CIFAR_BUDGETS


class DatasetLoader(Protocol):
    def __call__(self, split: str, image_size: int | None, progress: Progress) -> Dataset: ...


class DatasetReader(Protocol):
    """A loader of whatever lies at a path, for names like ``folder:PATH``."""

    def __call__(
        self, path: str, split: str, image_size: int | None, progress: Progress
    ) -> Dataset: ...


DATASETS: Registry[DatasetLoader] = Registry("dataset")
READERS: Registry[DatasetReader] = Registry("reader")


def list_datasets(tag: str | None = None) -> list[str]:
    """The names `load_dataset` knows; it also takes ``folder:PATH`` and other readers."""
    return DATASETS.names(tag)


@explain_arguments("bt.load_dataset('cifar10', split='test', limit=1000)", LOAD_HINTS)
def load_dataset(
    name: str | Path,
    split: str = "test",
    *,
    limit: int | None = None,
    image_size: int | None = None,
    progress: Progress = SILENT_PROGRESS,
) -> Dataset:
    """A split of a dataset, or the first ``limit`` images of it."""
    check_split(split)
    if limit is not None and limit < 1:
        raise UserError(f"`limit >= 1` must hold, but got limit={limit}")
    if image_size is not None and image_size < 1:
        raise UserError(f"`image_size >= 1` must hold, but got image_size={image_size}")
    name = str(name)
    kind, sep, path = check_dataset_name(name).partition(":")
    if sep:
        data = READERS.get(kind)(path, split, image_size=image_size, progress=progress)
    else:
        data = DATASETS.get(name)(split, image_size=image_size, progress=progress)
    if limit is not None:
        if limit > len(data):
            raise UserError(
                f"the {split} split of {name} has {len(data)} images, but got limit={limit}; "
                "omit `limit` to use all"
            )
        data = data.select(torch.arange(limit))
    return replace(data, pixels=data.pixels.load_into_memory(progress))


def dataset_facts(name: str, image_size: int | None = None) -> DatasetFacts:
    """Return the registered facts of a dataset, or read them from the dataset itself.

    With ``image_size`` those of images that are resized to it.
    """
    if ":" in name:
        return _measure_facts(name, image_size)
    facts = _registered_facts(DATASETS.entry(name).name)
    if image_size is None:
        return facts
    return facts._replace(shape=(facts.shape[0], image_size, image_size))


@lru_cache(maxsize=64)
def _registered_facts(name: str) -> DatasetFacts:
    """Facts of a registered dataset, read from its data at most once."""
    facts: DatasetFacts | None = DATASETS.entry(name).metadata.get("facts")
    return _measure_facts(name) if facts is None else facts


def _measure_facts(name: str, image_size: int | None = None) -> DatasetFacts:
    """Load all splits of a dataset and describe their sizes, classes and pixel statistics."""
    train, val, test = (
        load_dataset(name, split, image_size=image_size) for split in ("train", "val", "test")
    )
    return DatasetFacts(
        len(train), len(val), len(test), train.num_classes, train.shape, train.mean, train.std,
        test.budgets,
    )  # fmt: skip


def download_dataset(name: str, progress: Progress = SILENT_PROGRESS) -> Path:
    """Download, verify and convert a dataset if needed; return its folder."""
    kind, sep, path = check_dataset_name(name).partition(":")
    if sep:
        locate = READERS.entry(kind).metadata.get("place", Path)  # for paths of a special form
        return Path(locate(path)).expanduser()
    folder = Path(DATASETS.entry(name).metadata["get"](progress))
    remove_temporary_files(cache_dir() / name, is_recursive=False)
    return folder


def check_dataset_name(name: str) -> str:
    """Return the name of a dataset; a path without its reader raises an error with a hint."""
    kind, _, path = name.partition(":")
    if kind in READERS and not path:
        raise UserError(f"a dataset in a folder is written {kind}:PATH, but got {name!r}")
    if name not in DATASETS and kind not in READERS and Path(name).is_dir():
        raise UserError(f"{name!r} is a folder; write folder:{name} to read its images")
    return name


def as_indices(indices: Tensor | Sequence[int]) -> Tensor:
    """Positions as int64; a mask becomes the positions where it is true."""
    rows = torch.as_tensor(indices)
    return rows.nonzero().flatten() if rows.dtype == torch.bool else rows.long()
