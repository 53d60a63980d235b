"""Hashes of the images that a run was trained on, to find them among evaluated images."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.errors import CorruptFileError
from buttress.results.core import read_record_json, write_record_json

TRAINING_IMAGES_FILE = "training_images.json"


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """What a model was trained on."""

    dataset: str
    split: str
    hashes: NDArray[np.uint64]  # sorted, each once; none of images that were not in memory
    copies_in_validation: int = 0  # validation images that are training images too
    is_recorded: bool = True  # by the training; else it is assumed that the split was used

    def contains(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """(N,) whether an image of this hash is among them."""
        if not len(self.hashes):
            return np.zeros(len(hashes), dtype=np.bool_)
        places = np.searchsorted(self.hashes, hashes)
        return np.asarray(self.hashes[np.minimum(places, len(self.hashes) - 1)] == hashes)


def write_training_images(run_path: Path, images: TrainingImages) -> None:
    """Write the hashes into the folder of a run, whose run.json names the dataset."""
    content = {
        "split": images.split,
        "copies_in_validation": images.copies_in_validation,
        "hashes": base64.b64encode(images.hashes.astype("<u8").tobytes()).decode(),
    }
    write_record_json(run_path / TRAINING_IMAGES_FILE, content)


def read_training_images(run_path: Path, dataset: str) -> TrainingImages | None:
    """Read the hashes of a run; None if it has none.

    Raises:
        CorruptFileError: if the file is damaged.
    """
    path = run_path / TRAINING_IMAGES_FILE
    try:
        content: dict[str, Any] = read_record_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        raise CorruptFileError(f"{path} must be a file, but is a folder") from None
    try:
        hashes = np.frombuffer(base64.b64decode(content["hashes"], validate=True), dtype="<u8")
        copies = int(content["copies_in_validation"])
        return TrainingImages(dataset, str(content["split"]), hashes.astype(np.uint64), copies)
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptFileError(f"{path} has no hashes of images: {error}") from None
