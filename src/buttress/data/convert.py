"""Images of a user as a `Dataset`: arrays, datasets and loaders of torch, Hugging Face datasets."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from buttress.data.checks import as_tensor, check_images, check_labels
from buttress.data.core import Dataset, load_dataset
from buttress.data.pixels import to_float
from buttress.errors import UserError
from buttress.system.rng import isolated_rng

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from torch.utils.data import Dataset as TorchDataset

    DataLike = Dataset | str | tuple[Any, Any] | TorchDataset[Any] | DataLoader[Any] | Iterable[Any]

ACCEPTED = (
    "a bt.Dataset, the name of a dataset, a pair (images, labels), a torch Dataset or DataLoader, "
    "or a Hugging Face dataset"
)
IMAGE_KEYS = ("image", "img", "images", "pixel_values", "x")
LABEL_KEYS = ("label", "labels", "fine_label", "target", "targets", "y")


def as_dataset(data: DataLike, *, limit: int | None = None) -> Dataset:
    """The images to evaluate as a `Dataset`; ``limit`` takes the first ones only.

    A `DataLoader` is read once: every image of its dataset in the dataset's order, so that
    ``shuffle`` and ``drop_last`` change nothing and the sample ids are positions in the dataset. A
    loader with a sampler of its own is read in that order. Random transforms are drawn once, with a
    fixed seed. Images that have 8 bits are kept as such.
    """
    if limit is not None and limit < 1:
        raise UserError(f"`limit >= 1` must hold, but got limit={limit}")
    if isinstance(data, (str, Path)):
        return load_dataset(str(data), limit=limit)
    if isinstance(data, Dataset):
        return data if limit is None else data.select(range(_check_limit(limit, len(data))))
    if isinstance(data, Mapping) and _has_columns(data):
        data = _columns_as_data(data)
    if _is_pair(data):
        images, labels = cast("tuple[Any, Any]", data)
        stop = None if limit is None else _check_limit(limit, len(images))
        return Dataset.from_arrays(images[:stop], labels[:stop])
    with isolated_rng(torch.device("cpu"), 0, "read images"):
        source = _open_source(data)
        _warn_of_random_transforms(source.dataset)
        images, labels = _read_batches(source.batches, limit)
    classes = source.classes
    is_named = classes is not None and int(labels.max()) < len(classes)
    return Dataset.from_arrays(images, labels, classes=classes if is_named else None)


class ImageBatches(NamedTuple):
    """Batches of images and labels, and what is known about the dataset they are read from."""

    batches: Iterator[tuple[Any, Any]]
    dataset: Any  # by position; None where it has no positions
    classes: tuple[str, ...] | None


def _open_source(data: Any) -> ImageBatches:
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset

    if isinstance(data, DataLoader):
        dataset = None if isinstance(data.dataset, IterableDataset) else data.dataset
        batches = map(_image_and_label, _in_dataset_order(data))
        return ImageBatches(batches, dataset, _class_names(data.dataset))
    if isinstance(data, TensorDataset) and len(data.tensors) >= 2:
        x, y = data.tensors[:2]
        return ImageBatches(zip(x.split(1024), y.split(1024), strict=False), None, None)
    if isinstance(data, Mapping):
        splits = ", ".join(repr(key) for key in data)
        raise UserError(f"the data has splits or columns {splits}; pass one split, data['test']")
    if isinstance(data, (Tensor, np.ndarray)):
        raise UserError(f"the data must be {ACCEPTED}, but got images alone; pass (images, labels)")
    columns = _hugging_face_columns(data)
    has_positions = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not has_positions and not hasattr(data, "__iter__"):
        raise UserError(f"the data must be {ACCEPTED}, but got {type(data).__name__}")
    rows = (data[i] for i in range(len(data))) if has_positions else iter(data)
    dataset = data if has_positions else None
    if columns and (getattr(data, "format", None) or {}).get("type") == "numpy":
        raise UserError(
            "images of a Hugging Face dataset in numpy format have their channels last;"
            " pass data.with_format('torch'), or data.with_format(None)"
        )
    examples = (_image_and_label(row, columns) for row in rows)
    return ImageBatches(map(_as_batch, examples), dataset, _class_names(data))


def _as_batch(example: tuple[Any, Any]) -> tuple[Any, Any]:
    """A batch of one example; a batch, as lists of batches and iterators give, as it is."""
    image, label = _image_tensor(example[0]), example[1]
    return (image, label) if image.ndim == 4 else (image[None], [label])


def _has_columns(data: Mapping[str, Any]) -> bool:
    """Whether it is a mapping of images and labels, not of splits."""
    keys = (set(IMAGE_KEYS) & set(data), set(LABEL_KEYS) & set(data))
    return all(keys)


def _columns_as_data(columns: Mapping[str, Any]) -> Any:
    """(images, labels) of a mapping; pairs where the images are PIL images."""
    images, labels = _image_and_label(columns)
    if isinstance(images, list) and any(hasattr(image, "convert") for image in images):
        return list(zip(images, labels, strict=True))
    return images, labels


def _is_pair(data: Any) -> bool:
    """Whether it is (images, labels): two arrays, tensors or lists."""
    is_two = isinstance(data, (tuple, list)) and len(data) == 2
    if is_two and isinstance(data[0], list) and len(data[0]) == 2 and _is_batch(data[0][0]):
        return False  # two batches of a loader
    return is_two and all(isinstance(v, (Tensor, np.ndarray, list)) for v in data)


def _is_batch(images: Any) -> bool:
    return isinstance(images, (Tensor, np.ndarray)) and images.ndim == 4


def _check_limit(limit: int, count: int) -> int:
    if limit > count:
        raise UserError(
            f"the data has {count} images, but got limit={limit}; omit `limit` to use all"
        )
    return limit


def _in_dataset_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The loader without shuffling and with the last batch; as it is if it has its own sampler."""
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

    sampler = loader.sampler
    is_shuffled = (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    )
    is_plain = type(loader.batch_sampler) is BatchSampler
    if not is_plain or not (is_shuffled or type(sampler) is SequentialSampler):
        return loader
    return DataLoader(
        loader.dataset,
        loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
    )


def _image_and_label(row: Any, columns: tuple[str, str] | None = None) -> tuple[Any, Any]:
    """Image and label of an example or of a batch: a tuple, or a mapping with the usual keys."""
    if isinstance(row, Mapping):
        image, label = columns or (
            next((k for k in IMAGE_KEYS if k in row), ""),
            next((k for k in LABEL_KEYS if k in row), ""),
        )
        if image in row and label in row:
            return row[image], row[label]
        keys = ", ".join(map(str, row))
        raise UserError(
            f"an example must have an image ({', '.join(IMAGE_KEYS)}) and a label "
            f"({', '.join(LABEL_KEYS)}), but has {keys}; rename the columns"
        )
    if isinstance(row, Sequence) and not isinstance(row, str) and len(row) >= 2:
        return row[0], row[1]
    raise UserError(
        f"the data must give pairs of image and label, but gave {type(row).__name__}; labels are "
        "needed to say whether an attack succeeded"
    )


def _image_tensor(image: Any) -> Tensor:
    """(C, H, W): an array as it is, a PIL image as uint8."""
    if isinstance(image, Mapping):  # Image(decode=False) of Hugging Face
        raise UserError(
            "the images are not decoded; use data.cast_column(COLUMN, datasets.Image())"
        )
    if not hasattr(image, "convert"):
        return as_tensor(image, "images")
    pixels = np.asarray(image if image.mode == "L" else image.convert("RGB"))
    return torch.from_numpy(np.atleast_3d(pixels).copy()).permute(2, 0, 1)


def _hugging_face_columns(data: Any) -> tuple[str, str] | None:
    """The first columns of type Image and ClassLabel of a Hugging Face dataset."""
    features = getattr(data, "features", None)
    if not isinstance(features, Mapping):
        return None
    first = {type(kind).__name__: key for key, kind in reversed(list(features.items()))}
    columns = first.get("Image"), first.get("ClassLabel")
    return columns if None not in columns else None  # type: ignore[return-value]


def _class_names(data: Any) -> tuple[str, ...] | None:
    """The classes of a torchvision dataset, of a subset of one, or of a Hugging Face dataset."""
    while getattr(data, "classes", None) is None and hasattr(data, "dataset"):
        data = data.dataset
    names = getattr(data, "classes", None)
    if names is None and (columns := _hugging_face_columns(data)) is not None:
        names = getattr(data.features[columns[1]], "names", None)
    if not isinstance(names, (list, tuple)):
        return None
    return tuple(name if isinstance(name, str) else str(name[0]) for name in names)


def _warn_of_random_transforms(dataset: Any) -> None:
    """Warn where the same example, read twice, has two images."""
    if dataset is None or not len(dataset):
        return
    columns = _hugging_face_columns(dataset)
    try:
        first, again = (_image_tensor(_image_and_label(dataset[0], columns)[0]) for _ in range(2))
    except UserError:  # a loader may have its own way to make batches
        return
    if first.shape != again.shape or not torch.equal(first, again):
        warnings.warn(
            "the transforms of the data are random: each image is read once, with a fixed seed, "
            "and the accuracy is that of these images; use the test transforms",
            stacklevel=4,
        )


def _read_batches(batches: Iterator[tuple[Any, Any]], limit: int | None) -> tuple[Tensor, Tensor]:
    """All images, or the first ``limit``, as uint8 where that loses nothing."""
    images: list[Tensor] = []
    labels: list[Tensor] = []
    count = 0
    for raw_images, raw_labels in batches:
        x = _as_bytes_if_exact(check_images(raw_images))
        y = check_labels(raw_labels, len(x), None)
        if images and x.shape[1:] != images[0].shape[1:]:
            raise UserError(
                f"all images must have one shape, but got {tuple(images[0].shape[1:])} and "
                f"{tuple(x.shape[1:])}; resize and crop them in the transforms of the data"
            )
        images.append(x)
        labels.append(y)
        count += len(x)
        if limit is not None and count >= limit:
            break
    stop = None if limit is None else _check_limit(limit, count)
    if not images:
        raise UserError("there must be at least one image, but the data is empty")
    if any(x.dtype != torch.uint8 for x in images):
        images = [to_float(x) for x in images]
    return torch.cat(images)[:stop], torch.cat(labels)[:stop]


def _as_bytes_if_exact(x: Tensor) -> Tensor:
    """Floats that are pixel values of 8 bits over 255 as uint8, a quarter of the memory."""
    if x.dtype == torch.uint8:
        return x
    levels = (x * 255).round_().to(torch.uint8)
    return levels if torch.equal(to_float(levels), x) else x
