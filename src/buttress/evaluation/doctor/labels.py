"""Checks on labels: classes whose images the model predicts as each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.evaluation.doctor.core import CHECKS, AttackRecords, make_finding
from buttress.results.diagnosis import Finding

MIN_CLASS_IMAGES = 3  # of a class whose label is in doubt
MIN_CLASS_FRACTION = 0.3  # of them are predicted as one other class, ...
MIN_CLASS_RATIO = 2.0  # ... and that many times more than as their label
MIN_Z_SCORE = 3.0  # of these classes against their labels, in a sign test over all of them
MIN_ABOVE_CHANCE = 0.2  # of the accuracy with the other labels: untrained models are no evidence
MAX_NAMED_CLASSES = 5


@CHECKS.register("permuted_labels", tags=("records",))
def permuted_labels(subject: AttackRecords) -> Finding | None:
    """Most images of some classes are predicted as each other: labels are in another order."""
    clean = subject.clean
    if clean is None:
        return None
    other_class = label_permutation(clean.predictions, clean.labels)
    if not other_class:
        return None
    table = np.arange(max(int(clean.labels.max()), *other_class) + 1)
    table[list(other_class)] = list(other_class.values())
    before, after = clean.accuracy, float((clean.predictions == table[clean.labels]).mean())
    names = [str(name) for name in clean.metadata.get("class_names") or map(str, table)]
    pairs = [f"{names[a]} as {names[b]}" for a, b in other_class.items()]
    return make_finding(
        permuted_labels,
        "untrustworthy",
        f"labels and outputs seem to be in another order: {', '.join(pairs[:MAX_NAMED_CLASSES])}; "
        f"clean accuracy rises from {before:.1%} to {after:.1%} with these labels",
        "check the class folders, or the order of the label map, against those of training",
        {"before": before, "after": after, "classes": len(other_class)},
    )


def label_permutation(predictions: NDArray[Any], labels: NDArray[Any]) -> dict[int, int]:
    """Label -> the class that its images are predicted as, where such labels form a cycle.

    Two swapped classes are a cycle of two. Empty if such classes may be chance.
    """
    own: dict[int, int] = {}
    other: dict[int, tuple[int, int]] = {}
    for label in np.unique(labels).tolist():
        of_label = predictions[labels == label]
        classes, counts = np.unique(of_label, return_counts=True)
        top, count = int(classes[counts.argmax()]), int(counts.max())
        correct = int((of_label == label).sum())
        fewest = max(
            MIN_CLASS_IMAGES, MIN_CLASS_FRACTION * len(of_label), MIN_CLASS_RATIO * correct
        )
        if top != label and count >= fewest:
            own[label], other[label] = correct, (top, count)
    cycle = set(other)
    while (inside := {top for label, (top, _) in other.items() if label in cycle} & cycle) != cycle:
        cycle = inside
    gained, lost = sum(other[label][1] for label in cycle), sum(own[label] for label in cycle)
    accuracy = (int((predictions == labels).sum()) + gained - lost) / max(len(labels), 1)
    is_learned = accuracy >= 1 / max(len(np.unique(labels)), 1) + MIN_ABOVE_CHANCE
    if not is_learned or gained - lost < MIN_Z_SCORE * math.sqrt(gained + lost):
        return {}
    return {label: other[label][0] for label in sorted(cycle)}
