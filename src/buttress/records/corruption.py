"""The records of corruptions in short: one accuracy for all of them, and one for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from buttress.statistics import Interval, mean_interval, wilson

if TYPE_CHECKING:
    from buttress.records.evaluation import AttackRecord

CORRUPTION = "corruption"
OFFICIAL = "-official"  # how the name of a data set of published corrupted images ends


@dataclass(frozen=True)
class Corruptions:
    """How a model does on corrupted copies of all images, whether right without corruption or not.

    ``mce`` is the mean over corruptions of the mean error over severities. It is not divided by the
    errors of AlexNet, so that ``1 - mce`` is the accuracy.
    """

    accuracies: dict[str, dict[int, float]]  # corruption -> severity -> accuracy
    each: dict[str, NDArray[np.float64]]  # corruption -> (N,) share of the copies that are right
    counts: bool  # in the worst case

    @property
    def shares(self) -> NDArray[np.float64]:
        """(N,) of the corrupted copies of each image that are right."""
        return np.asarray(np.mean([*self.each.values()], axis=0))

    @property
    def accuracy(self) -> float:
        return float(self.shares.mean()) if len(self.shares) else float("nan")

    @property
    def mce(self) -> float:
        return 1 - self.accuracy

    @property
    def interval(self) -> Interval:
        """The 95% interval of the accuracy, over the draw of test images."""
        return mean_interval(self.shares)

    def by_corruption(self) -> dict[str, float]:
        """The accuracy of each corruption, over its severities."""
        return {name: float(np.mean([*row.values()])) for name, row in self.accuracies.items()}

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "accuracy": self.accuracy,
            "interval": self.interval,
            "mce": self.mce,
            "in_worst_case": self.counts,
            "by_corruption": {
                name: {
                    "accuracy": mean,
                    "interval": mean_interval(self.each[name]),
                    "by_severity": self.accuracies[name],
                    "intervals": {
                        severity: wilson(share * len(self.shares), len(self.shares))
                        for severity, share in self.accuracies[name].items()
                    },
                }
                for name, mean in self.by_corruption().items()
            },
        }


def summary_of(records: Iterable[AttackRecord]) -> Corruptions | None:
    """The corruptions among some records; None if there are none."""
    groups: dict[str, dict[int, AttackRecord]] = {}
    for record in records:
        if record.is_corruption:
            args = record.meta["args"]
            groups.setdefault(args["corruption"], {})[int(args["severity"])] = record
    if not groups:
        return None
    return Corruptions(
        {name: {s: row[s].accuracy for s in sorted(row)} for name, row in groups.items()},
        {n: np.mean([r.correct for r in row.values()], axis=0) for n, row in groups.items()},
        all(r.counts for row in groups.values() for r in row.values()),
    )


def is_official(record: AttackRecord) -> bool:
    """Whether the images of a corruption were the published ones."""
    return str(record.meta.get("images", "")).endswith(OFFICIAL)
