"""The first images of CIFAR-10, bundled: natural images for a first try without a download."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from buttress.data.core import CIFAR_BUDGETS, DATASETS, Dataset, DatasetFacts
from buttress.data.datasets.cifar import CIFAR10
from buttress.data.pixels import MemoryPixels
from buttress.data.splits import split_indices
from buttress.errors import UserError
from buttress.system.progress import Progress

FILE = Path(__file__).with_name("cifar10_sample.npz")  # ids and labels of the images of the PNG
PICTURE = FILE.with_suffix(".png")  # a grid of images, row by row
NUM_TRAIN, NUM_VAL, NUM_TEST = 100, 50, 200
SIDE = 32


class SampleArrays(NamedTuple):
    images: Tensor  # (350, 3, 32, 32) uint8: train, val, test
    labels: Tensor
    ids: Tensor  # those of the images in cifar10


@DATASETS.register(
    "cifar10_sample",
    tags=("bundled", "natural"),
    get=lambda progress: PICTURE,
    facts=DatasetFacts(
        NUM_TRAIN, NUM_VAL, NUM_TEST, 10, (3, SIDE, SIDE), CIFAR10.mean, CIFAR10.std
    ),
)
def cifar10_sample(split: str, image_size: int | None, progress: Progress) -> Dataset:
    """The first 100, 50 and 200 images of the parts of CIFAR-10, bundled; no download."""
    if image_size not in (None, SIDE):
        raise UserError(
            f"cifar10_sample images are 32x32, so image_size must be 32, but got {image_size}"
        )
    arrays = read_sample()
    parts = torch.arange(len(arrays.ids)).split([NUM_TRAIN, NUM_VAL, NUM_TEST])
    rows = split_indices(split, train=parts[0], val=parts[1], test=parts[2])
    return Dataset(
        "cifar10_sample", split, MemoryPixels(arrays.images).select(rows), arrays.labels[rows],
        arrays.ids[rows], CIFAR10.classes, CIFAR10.mean, CIFAR10.std, CIFAR_BUDGETS,
    )  # fmt: skip


@lru_cache(maxsize=1)
def read_sample() -> SampleArrays:
    with np.load(FILE, allow_pickle=False) as numbers:
        ids, labels = (
            torch.from_numpy(numbers[name].astype(np.int64)) for name in ("ids", "labels")
        )
    with Image.open(PICTURE, formats=["PNG"]) as picture:
        grid = np.asarray(picture)
    rows, columns = grid.shape[0] // SIDE, grid.shape[1] // SIDE
    tiles = grid.reshape(rows, SIDE, columns, SIDE, 3).transpose(0, 2, 4, 1, 3)
    images = torch.from_numpy(np.ascontiguousarray(tiles).reshape(-1, 3, SIDE, SIDE))
    return SampleArrays(images, labels, ids)
