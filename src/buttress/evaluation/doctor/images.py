"""Checks on the images of an evaluation: copies, training images, empty classes, dropped files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import nn

from buttress.data import Dataset, load_dataset
from buttress.data.pixels import hash_images
from buttress.errors import ButtressError
from buttress.evaluation.doctor.core import (
    CHECKS,
    check_tags,
    make_finding,
    run_checks,
    with_findings,
)
from buttress.results.attack_record import AttackRecord
from buttress.results.diagnosis import Finding, FindingSeverity, warning_texts
from buttress.results.training_images import TrainingImages
from buttress.statistics import effective_image_fraction

MIN_COPIES_FRACTION = 0.01  # of the images; below it copies are only noted
CHANCE = 1e-3  # that a class of average size is missing among the first images of a split
MAX_NAMES = 5


@dataclass(frozen=True)
class EvaluatedImages:
    """The images of an evaluation, and those that the model was trained on, where known."""

    data: Dataset
    training: TrainingImages | None = None

    @cached_property
    def duplicate_groups(self) -> NDArray[np.int64]:
        """(N,) the same number for images with the same pixels."""
        hashes = self.data.image_hashes
        if hashes is None:
            return np.arange(len(self.data))
        _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
        return np.asarray(first[group.reshape(-1)], dtype=np.int64)

    def duplicate_ids(self) -> list[list[int]]:
        """The sample ids of each image that occurs more than once."""
        groups, ids = self.duplicate_groups, self.data.ids.numpy()
        values, counts = np.unique(groups, return_counts=True)
        order = np.argsort(groups, kind="stable")
        members = np.split(ids[order], np.cumsum(counts)[:-1])
        return [part.tolist() for part in members if len(part) > 1] if len(values) else []


def find_training_images(model: nn.Module, data: Dataset) -> TrainingImages | None:
    """What a model was trained on: as its run recorded it, else probably the train split.

    It is read for folders of the user; the splits of published datasets differ.
    """
    recorded: TrainingImages | None = getattr(model, "training_images", None)
    if recorded is not None:
        return recorded
    hashes = np.zeros(0, dtype=np.uint64)
    if data.name.startswith("folder:") and not data.split.startswith("train"):
        try:
            train = load_dataset(data.name, "train", image_size=data.shape[1])
        except (ButtressError, OSError):  # it has no train split
            return None
        split_hashes = hash_images(train.pixels)
        hashes = hashes if split_hashes is None else np.unique(split_hashes)
    return TrainingImages(data.name, "train", hashes, is_recorded=False)


def audit_images(
    records: Mapping[str, AttackRecord], subject: EvaluatedImages
) -> dict[str, AttackRecord]:
    """Check the images of merged records again: copies may be in different parts."""
    findings, copies = run_checks(subject, "data"), subject.duplicate_ids()
    audited = {}
    for name, record in records.items():
        replaced = [f for f in record.findings if "data" in check_tags(f)]
        others = [f for f in record.findings if f not in replaced]
        warnings = [
            *(w for w in record.metadata.get("warnings", ()) if w not in warning_texts(replaced)),
            *warning_texts(findings),
        ]
        metadata = {**record.metadata, "duplicate_ids": copies, "warnings": warnings}
        audited[name] = with_findings(replace(record, metadata=metadata), [*findings, *others])
    return audited


@CHECKS.register("duplicate_images", tags=("data",))
def duplicate_images(subject: EvaluatedImages) -> Finding | None:
    """Some images occur more than once among the evaluated ones."""
    groups, labels = subject.duplicate_groups, subject.data.labels.numpy()
    images, distinct = len(groups), len(np.unique(groups))
    if distinct == images:
        return None
    conflicts = int((labels != labels[groups]).sum())
    effective = effective_image_fraction(groups) * images
    conflict_text = f", {conflicts} of them with another label" if conflicts else ""
    return make_finding(
        duplicate_images,
        _severity_of_fraction(1 - distinct / images, "warning"),
        f"only {distinct} of the {images} images are distinct, the others are copies"
        f"{conflict_text}; 95% intervals are those of {effective:.0f} images",
        "remove the copies and evaluate again",
        {"images": images, "distinct": distinct, "effective_images": round(effective, 2),
         "conflicting_labels": conflicts},
    )  # fmt: skip


@CHECKS.register("training_images", tags=("data",))
def training_images(subject: EvaluatedImages) -> Finding | None:
    """Some of the evaluated images are training images of the model."""
    data, training = subject.data, subject.training
    if training is None:
        return None
    hashes, n = data.image_hashes, len(data)
    num_seen = 0 if hashes is None else int(training.contains(hashes).sum())
    is_training_split = data.name == training.dataset and bool(
        {*data.split.split("+")} & {*training.split.split("+")}
    )
    if is_training_split and not len(training.hashes):
        num_seen = n
    if not num_seen:
        return None
    if training.is_recorded:
        what, severity = "training images of this run", _severity_of_fraction(num_seen / n)
    else:
        what = "in the train split of the dataset, which the model was probably trained on"
        severity = _severity_of_fraction(num_seen / n, "warning")
    return make_finding(
        training_images,
        severity,
        f"{num_seen} of the {n} evaluated images ({data.split} split) are {what}: accuracy on "
        "images that a model was trained on says little about others",
        "evaluate on images that were not trained on, such as --split test; remove copies of "
        "training images from the other splits",
        {"images": n, "training_images": num_seen, "split": data.split},
    )


@CHECKS.register("empty_classes", tags=("data",))
def empty_classes(subject: EvaluatedImages) -> Finding | None:
    """Some classes have no image among the evaluated ones, and not by chance."""
    data = subject.data
    missing = set(range(data.num_classes)) - set(data.labels.unique().tolist())
    is_chance = (1 - 1 / max(data.num_classes, 2)) ** len(data) > CHANCE
    names = [data.classes[label] for label in sorted(missing)]
    names = [name for name in names if name in data.empty_classes or not is_chance]
    if not names:
        return None
    return make_finding(
        empty_classes,
        "warning",
        f"{len(names)} of the {data.num_classes} classes have no image among the {len(data)} "
        f"evaluated ones: {_first(names)}; accuracies are of the other classes only",
        "add images of these classes, or evaluate more images",
        {"classes": len(names), "names": _first(names)},
    )


@CHECKS.register("dropped_files", tags=("data",))
def dropped_files(subject: EvaluatedImages) -> Finding | None:
    """Files of the dataset's folder were not read, because they belong to no class or format."""
    files = subject.data.dropped_files
    if not files:
        return None
    return make_finding(
        dropped_files,
        "warning",
        f"{len(files)} files of the dataset were not read: {_first(files)}",
        "move images into the folder of their class, and convert other formats to PNG or JPEG",
        {"files": len(files), "names": _first(files)},
    )


def _severity_of_fraction(
    fraction: float, severity: FindingSeverity = "untrustworthy"
) -> FindingSeverity:
    return severity if fraction >= MIN_COPIES_FRACTION else "note"


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
