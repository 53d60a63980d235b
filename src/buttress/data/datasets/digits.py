"""The 1,797 handwritten digits that come with scikit-learn: real images without a download."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from buttress.data.core import DATASETS, Dataset, DatasetFacts
from buttress.data.pixels import MemoryPixels, channel_stats
from buttress.data.splits import split_indices, stratified_order
from buttress.errors import UserError
from buttress.system.progress import Progress, SilentProgress
from buttress.threats.norm_ball import Norm

DIGITS_BUDGETS: Mapping[Norm, float] = {"Linf": 0.06, "L2": 1.0, "L1": 8.0}
NUM_IMAGES, NUM_TEST, NUM_VAL = 1797, 397, 200
MEAN, STD = 0.3049098690257353, 0.3238855775899239  # of the part for training, at 32x32
ORIGINAL_SIZE, LEVELS = 8, 16
MIN_SIZE, DEFAULT_SIZE, MAX_SIZE = 8, 32, 64


class DigitsArrays(NamedTuple):
    images: Tensor  # (1797, 3, H, W) uint8
    labels: Tensor
    train: Tensor  # rows of each part
    val: Tensor
    test: Tensor


def get_digits(progress: Progress) -> Path:
    # Found without importing scikit-learn, which takes a second.
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


@DATASETS.register(
    "digits",
    tags=("bundled", "gray"),
    get=get_digits,
    facts=DatasetFacts(
        NUM_IMAGES - NUM_TEST - NUM_VAL,
        NUM_VAL,
        NUM_TEST,
        10,
        (3, DEFAULT_SIZE, DEFAULT_SIZE),
        (MEAN,) * 3,
        (STD,) * 3,
        DIGITS_BUDGETS,
    ),
)
def digits(split: str, image_size: int | None, progress: Progress) -> Dataset:
    """Handwritten digits (scikit-learn), enlarged from 8x8 gray to 32x32 RGB."""
    size = DEFAULT_SIZE if image_size is None else image_size
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise UserError(
            f"`{MIN_SIZE} <= image_size <= {MAX_SIZE}` must hold for digits, but got "
            f"image_size={size}"
        )
    arrays = read_digits(size)
    pixels = MemoryPixels(arrays.images)
    mean, std = channel_stats(pixels.select(arrays.train))
    rows = split_indices(split, train=arrays.train, val=arrays.val, test=arrays.test)
    classes = tuple(str(digit) for digit in range(10))
    labels = arrays.labels[rows]
    return Dataset(
        "digits", split, pixels.select(rows), labels, rows, classes, mean, std, DIGITS_BUDGETS
    )


@lru_cache(maxsize=2)
def read_digits(size: int) -> DigitsArrays:
    with gzip.open(get_digits(SilentProgress()), "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    gray, labels = table[:, :-1], table[:, -1]
    images = upsample_exact(gray.reshape(-1, ORIGINAL_SIZE, ORIGINAL_SIZE), size)
    order = torch.tensor(stratified_order(list(range(len(labels))), labels.tolist(), "digits"))
    rgb = torch.from_numpy(images)[:, None].expand(-1, 3, -1, -1).contiguous()
    test, val, train = order.split([NUM_TEST, NUM_VAL, NUM_IMAGES - NUM_TEST - NUM_VAL])
    return DigitsArrays(rgb, torch.from_numpy(labels.copy()), train, val, test)


def upsample_exact(gray: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """(N, 8, 8) levels 0..16 -> (N, size, size) levels 0..255, bilinear, in integer arithmetic.

    The center of target pixel i lies at ((2i + 1) * 8 - size) / (2 * size) on the source grid, so
    all weights are whole multiples of 1 / (2 * size) and no machine can round them differently.
    """
    unit = 2 * size
    center = np.clip(
        (2 * np.arange(size) + 1) * ORIGINAL_SIZE - size, 0, (ORIGINAL_SIZE - 1) * unit
    )
    distance = np.abs(center[:, None] - np.arange(ORIGINAL_SIZE) * unit)
    weights = np.maximum(unit - distance, 0)  # (size, 8), each row sums to unit
    total = weights @ gray @ weights.T * 255
    denominator = LEVELS * unit**2
    return ((2 * total + denominator) // (2 * denominator)).astype(np.uint8)
