"""The 1,797 handwritten digits that come with scikit-learn: real images without a download."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from buttress.data.core import DATASETS, SILENT, Dataset, Facts
from buttress.data.pixels import MemoryPixels, channel_stats
from buttress.data.splits import rows_of, spread
from buttress.errors import UserError
from buttress.progress import Progress
from buttress.threat import Norm

BUDGETS: Mapping[Norm, float] = {"Linf": 0.06, "L2": 1.0, "L1": 8.0}
IMAGES, TEST, VAL = 1797, 397, 200
MEAN, STD = 0.3049098690257353, 0.3238855775899239  # of the part for training, at 32x32
SOURCE_SIZE, LEVELS = 8, 16
SMALLEST, DEFAULT, LARGEST = 8, 32, 64


class Digits(NamedTuple):
    images: Tensor  # (1797, 3, H, W) uint8
    labels: Tensor
    train: Tensor  # rows of each part
    val: Tensor
    test: Tensor


def get_digits(progress: Progress) -> Path:
    import sklearn.datasets

    return Path(sklearn.datasets.__file__).parent / "data" / "digits.csv.gz"


@DATASETS.register(
    "digits",
    tags=("bundled", "grey"),
    get=get_digits,
    facts=Facts(
        IMAGES - TEST - VAL, TEST, 10, (3, DEFAULT, DEFAULT), (MEAN,) * 3, (STD,) * 3, BUDGETS
    ),
)
def digits(split: str, *, image_size: int | None = None, progress: Progress = SILENT) -> Dataset:
    """Handwritten digits (scikit-learn), enlarged from 8x8 grey to 32x32 RGB."""
    size = DEFAULT if image_size is None else image_size
    if not SMALLEST <= size <= LARGEST:
        raise UserError(f"digits come with image_size from {SMALLEST} to {LARGEST}, but got {size}")
    all_of_it = read_digits(size)
    pixels = MemoryPixels(all_of_it.images)
    mean, std = channel_stats(pixels.select(all_of_it.train))
    rows = rows_of(split, train=all_of_it.train, val=all_of_it.val, test=all_of_it.test)
    classes = tuple(str(digit) for digit in range(10))
    labels = all_of_it.labels[rows]
    return Dataset("digits", split, pixels.select(rows), labels, rows, classes, mean, std, BUDGETS)


@lru_cache(maxsize=2)
def read_digits(size: int) -> Digits:
    from sklearn.datasets import load_digits

    grey, labels = load_digits(return_X_y=True)
    images = enlarge(grey.astype(np.int64).reshape(-1, SOURCE_SIZE, SOURCE_SIZE), size)
    order = torch.tensor(spread(list(range(len(labels))), labels.tolist(), "digits"))
    rgb = torch.from_numpy(images)[:, None].expand(-1, 3, -1, -1).contiguous()
    test, val, train = order.split([TEST, VAL, IMAGES - TEST - VAL])
    return Digits(rgb, torch.from_numpy(labels.astype(np.int64)), train, val, test)


def enlarge(grey: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """(N, 8, 8) levels 0..16 -> (N, size, size) levels 0..255, bilinear, in whole numbers only.

    The centre of target pixel i lies at ((2i + 1) * 8 - size) / (2 * size) on the source grid, so
    all weights are whole multiples of 1 / (2 * size) and no machine can round them differently.
    """
    unit = 2 * size
    centre = np.clip((2 * np.arange(size) + 1) * SOURCE_SIZE - size, 0, (SOURCE_SIZE - 1) * unit)
    distance = np.abs(centre[:, None] - np.arange(SOURCE_SIZE) * unit)
    weights = np.maximum(unit - distance, 0)  # (size, 8), each row sums to unit
    total = weights @ grey @ weights.T * 255
    whole = LEVELS * unit**2
    return ((2 * total + whole) // (2 * whole)).astype(np.uint8)
