"""Hugging Face datasets (the package ``datasets``), read by row."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from buttress.data.core import Dataset, budgets_of_size
from buttress.data.pixels import channel_stats
from buttress.data.readers.folder import (
    STATISTICS_SAMPLE,
    ImageFile,
    default_encoded_size,
    file_dataset,
    image_file,
    select_split,
    split_validation,
)
from buttress.data.readers.images import EncodedPixels, decode_image
from buttress.errors import DataError, UserError

SPLIT_NAMES = {"train": ("train",), "val": ("validation", "val", "valid"), "test": ("test",)}


@dataclass(frozen=True, eq=False)
class HuggingFacePixels(EncodedPixels):
    """The column ``column`` of tables, each image cut to a square of ``size`` pixels."""

    tables: tuple[Any, ...]
    column: str
    rows: Tensor  # (N, 2) number of the table, row in it
    size: int

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, row: int) -> NDArray[np.uint8]:
        name, content = self.read_encoded(row)
        return decode_image(io.BytesIO(content), self.size, name=name)

    def read_encoded(self, row: int) -> tuple[str, bytes]:
        table, line = self.rows[row].tolist()
        cell = self.tables[table][line][self.column]
        return f"image {line}", cell["bytes"] or Path(cell["path"]).read_bytes()

    def select(self, indices: Tensor) -> HuggingFacePixels:
        return replace(self, rows=self.rows[indices])

    def fingerprint_bytes(self) -> Iterator[bytes]:
        for table in self.tables:
            yield f"{table.info.version} {len(table)}\n".encode()
        yield self.rows.contiguous().numpy().astype("<i8").tobytes()


def load_hugging_face(name: str, cache: str | None, split: str, image_size: int | None) -> Dataset:
    """A split of a dataset; where it has no labeled ``test``, that is its validation split."""
    if importlib.util.find_spec("datasets") is None:
        raise UserError(
            f"timm:hfds/{name} needs the package datasets; install it with `pip install datasets`"
        )
    tables = read_tables(name, cache)
    image, label = image_and_label_columns(name, next(iter(tables.values())))
    numbers = {part: number for number, part in enumerate(tables)}
    parts = {
        part: sorted(image_file(f"{part}/{row}", y) for row, y in enumerate(table[label]))
        for part, table in tables.items()
    }
    if "test" in parts and parts["test"][0].label < 0:  # labels that are kept secret
        del parts["test"]
    if "val" not in parts and "train" in parts:
        parts["train"], parts["val"] = split_validation(parts["train"])
    files = select_split(split, parts, Path(name))

    def pixels(files: list[ImageFile], size: int) -> HuggingFacePixels:
        row_references = [file.path.split("/") for file in files]
        rows = torch.tensor([(numbers[part], int(row)) for part, row in row_references])
        return HuggingFacePixels(tuple(tables.values()), image, rows, size)

    sample = (parts.get("train") or files)[:STATISTICS_SAMPLE]
    size = image_size or default_encoded_size(pixels(sample[:1], 0))
    stats = channel_stats(pixels(sample, size))
    classes = tuple(next(iter(tables.values())).features[label].names)
    full_name, budgets = f"timm:hfds/{name}", budgets_of_size(size)
    return file_dataset(full_name, split, files, pixels(files, size), classes, stats, budgets)


def read_tables(name: str, cache: str | None) -> dict[str, Any]:
    """The splits there are, by our names, with images left encoded."""
    import datasets

    try:
        available = datasets.get_dataset_split_names(name)
        matching = {
            part: [w for w in words if w in available] for part, words in SPLIT_NAMES.items()
        }
        tables = {
            part: datasets.load_dataset(name, split=names[0], cache_dir=cache)
            for part, names in matching.items()
            if names
        }
    # The package raises errors of many kinds for a name that is not there or cannot be reached.
    except Exception as error:
        raise DataError(f"the Hugging Face dataset {name} could not be loaded: {error}") from None
    if not tables:
        raise DataError(f"{name} must have a train, validation or test split, but has {available}")
    image, _ = image_and_label_columns(name, next(iter(tables.values())))
    return {p: t.cast_column(image, datasets.Image(decode=False)) for p, t in tables.items()}


def image_and_label_columns(name: str, table: Any) -> tuple[str, str]:
    """The first column of images and the first of classes."""
    import datasets

    images = [key for key, kind in table.features.items() if isinstance(kind, datasets.Image)]
    labels = [key for key, kind in table.features.items() if isinstance(kind, datasets.ClassLabel)]
    if not images or not labels:
        raise DataError(
            f"{name} must have a column of images and one of class labels, but has "
            f"{', '.join(table.features)}"
        )
    return images[0], labels[0]
