"""What all results share: the version of their files, names, accuracies with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from buttress.errors import OutdatedFileError, UserError
from buttress.statistics import Interval, mean_interval, wilson_interval
from buttress.system.files import read_json, write_json

RECORD_VERSION = 2  # of run.json, done.json, attack records, analyses and results of studies
VERSION_KEY = "record_version"
CLEAN, WORST_CASE = "clean", "worst_case"
SPLITS = ("train", "val", "test", "train+val")  # of a dataset


def check_split(split: str) -> None:
    """Raise on a split that no dataset has."""
    if split in SPLITS:
        return
    name, _, rows = str(split).partition("[")
    advice = {"validation": "; write val", "valid": "; write val", "dev": "; write val"}.get(
        name, ""
    )
    if rows:
        advice += "; `limit` takes the first images only"
    raise UserError(f"split must be one of {', '.join(SPLITS)}, but got {split!r}{advice}")


def check_record_version(path: Path, content: Mapping[str, Any]) -> None:
    """Raise `OutdatedFileError` unless the content of a file has the version of today."""
    if (version := content.get(VERSION_KEY, 1)) != RECORD_VERSION:
        raise OutdatedFileError(
            f"{path} has record version {version}, but this version of Buttress reads "
            f"{RECORD_VERSION}; move it away and run the same command again, or read it with the "
            "version of Buttress that wrote it"
        )


def write_record_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with its version and checksum."""
    write_json(path, {VERSION_KEY: RECORD_VERSION, **content})


def read_record_json(path: Path) -> dict[str, Any]:
    """Read a file of `write_record_json`; raise if it is corrupt or of another version."""
    content = read_json(path)
    check_record_version(path, content)
    del content[VERSION_KEY]
    return content


@dataclass(frozen=True)
class AccuracyEstimate:
    """An accuracy over n test images, with its 95% interval."""

    accuracy: float
    correct: float  # number of images; not whole for a mean over corrupted copies
    n: int
    interval: Interval

    @classmethod
    def from_counts(cls, correct: float, n: int) -> AccuracyEstimate:
        """Estimate from a number of correct images."""
        return cls(correct / n, correct, n, wilson_interval(correct, n))

    @classmethod
    def from_scores(cls, scores: NDArray[Any], effective_fraction: float = 1.0) -> AccuracyEstimate:
        """Estimate from per-sample results: correct or not, or fractions of correct copies.

        The interval is that of ``effective_fraction`` times as many images, where some are copies.
        """
        n = len(scores)
        accuracy = float(scores.mean()) if n else float("nan")
        if scores.dtype == bool:
            correct = int(scores.sum())
            effective = effective_fraction * n
            return cls(accuracy, correct, n, wilson_interval(accuracy * effective, effective))
        interval = mean_interval(scores, effective_fraction=effective_fraction)
        return cls(accuracy, accuracy * n, n, interval)

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {"accuracy": self.accuracy, "interval": self.interval}
