"""Robust accuracy per threat model, and UAR (arXiv:1908.08016), from the records of attacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.errors import UserError
from buttress.results.attack_record import AttackRecord
from buttress.results.core import AccuracyEstimate
from buttress.statistics import Interval
from buttress.threats.core import Threat
from buttress.threats.norm_ball import NORMS


@dataclass(frozen=True)
class ThreatSummary:
    """All attacks of an evaluation under one threat model."""

    threat: str
    records: tuple[AttackRecord, ...]

    @property
    def kind(self) -> str:
        return self.threat.partition(":")[0]

    @cached_property
    def is_robust(self) -> NDArray[np.bool_]:
        """(N,) correct under every attack in this threat model, and its queries."""
        return np.logical_and.reduce([r.is_robust for r in self.records])

    @property
    def estimate(self) -> AccuracyEstimate:
        return self.records[0].estimate(self.is_robust)

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(r.name for r in self.records)

    @property
    def forward_passes(self) -> float:
        """Forward passes per image, with those of the cross-check."""
        checks = [r.metadata.get("cross_check") or {} for r in self.records]
        return sum(float(m.get("forward_passes") or 0) for m in [*self._metadata, *checks])

    @property
    def backward_passes(self) -> float:
        return sum(float(m.get("backward_passes") or 0) for m in self._metadata)

    @property
    def _metadata(self) -> list[Any]:
        return [r.metadata for r in self.records]

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            **self.estimate.to_dict(),
            "attacks": list(self.entries),
            "forward_passes": round(self.forward_passes, 3),
            "backward_passes": round(self.backward_passes, 3),
        }


def summarize_threats(records: Iterable[AttackRecord]) -> dict[str, ThreatSummary]:
    """Threat model -> its attacks, in the order of the suite."""
    groups: dict[str, list[AttackRecord]] = {}
    for record in records:
        if threat := record.definition.threat:
            groups.setdefault(threat, []).append(record)
    return {threat: ThreatSummary(threat, tuple(group)) for threat, group in groups.items()}


BEYOND_NORMS = "beyond_norms"  # in place of an entry: the mean over all that are no norm balls


def beyond_norms(threats: dict[str, ThreatSummary]) -> NDArray[np.float64]:
    """(N,) the fraction of threat models beyond norm balls that each image is robust to."""
    flags = [s.is_robust for s in threats.values() if s.kind not in NORMS]
    if not flags:
        raise UserError("there are no attacks beyond norm balls; evaluate the suite unseen")
    return np.asarray(np.mean(flags, axis=0))


@dataclass(frozen=True)
class Calibration:
    """Six sizes of a threat model, and the best accuracy of networks trained against each."""

    sizes: tuple[str, ...]
    accuracies: tuple[float, ...]  # ATA, in percent

    def threats(self, kind: str) -> list[str]:
        return [str(Threat.parse(f"{kind}:{size}")) for size in self.sizes]


def _calibrate(sizes: str, accuracies: str) -> Calibration:
    return Calibration(tuple(sizes.split()), tuple(map(float, accuracies.split())))


# Published sizes and ATA of arXiv:1908.08016; norms there are of 255 levels, `flow` is elastic.
CIFAR10 = {
    "Linf": _calibrate("1/255 2/255 4/255 8/255 16/255 32/255", "91.0 87.8 81.6 71.3 46.5 23.1"),
    "L2": _calibrate(
        "40/255 80/255 160/255 320/255 640/255 2560/255", "90.1 86.4 79.6 67.3 49.9 17.3"
    ),
    "L1": _calibrate(
        "195/255 390/255 780/255 1560/255 6240/255 24960/255", "92.2 90.0 83.2 73.8 47.4 35.3"
    ),
    "jpeg": _calibrate("0.03125 0.0625 0.125 0.25 0.5 1", "89.7 87.0 83.1 78.6 69.7 35.4"),
    "jpeg-l1": _calibrate("2 8 64 256 512 1024", "91.4 88.1 80.2 68.9 56.3 37.7"),
    "flow": _calibrate("0.125 0.25 0.5 1 2 8", "87.4 81.3 72.1 58.2 45.4 27.8"),
}
IMAGENET100 = {
    "jpeg": _calibrate("0.0625 0.125 0.25 0.5 1 2", "85.0 83.2 79.3 72.8 34.8 1.1"),
    "jpeg-l2": _calibrate("8 16 32 64 128 256", "84.8 82.5 78.9 72.3 47.5 3.4"),
    "jpeg-l1": _calibrate("256 1024 4096 16384 65536 131072", "84.8 81.8 76.2 67.1 46.4 41.8"),
    "flow": _calibrate("0.25 0.5 2 4 8 16", "85.9 83.2 78.1 75.6 57.0 22.5"),
    "fog": _calibrate("128 256 512 2048 4096 8192", "85.8 83.8 79.0 68.4 67.9 64.7"),
    "gabor": _calibrate("6.25 12.5 25 400 800 1600", "84.0 79.8 79.8 66.2 44.7 14.6"),
    "snow": _calibrate("0.0625 0.125 0.25 2 4 8", "84.0 81.1 77.7 65.6 59.5 41.2"),
}
CALIBRATIONS = {"cifar10": CIFAR10, "imagenet-100": IMAGENET100}


@dataclass(frozen=True)
class UARResult:
    """The sum of a model's accuracies over six calibrated sizes, divided by that of ATA.

    1 is as robust as networks that were trained against the very threat model, each at its size.
    """

    kind: str
    uar: float
    interval: Interval  # 95%, over the images
    accuracies: tuple[float, ...]  # at the six sizes, in [0, 1]

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {"uar": self.uar, "interval": self.interval, "accuracies": list(self.accuracies)}


def unforeseen_robustness(threats: dict[str, ThreatSummary], dataset: str) -> dict[str, UARResult]:
    """UAR of each kind that was attacked at all six sizes published for the dataset."""
    results = {}
    for kind, calibration in CALIBRATIONS.get(dataset, {}).items():
        names = calibration.threats(kind)
        if all(name in threats for name in names):
            results[kind] = _uar(kind, [threats[name] for name in names], calibration)
    return results


def _uar(kind: str, summaries: Sequence[ThreatSummary], calibration: Calibration) -> UARResult:
    flags = np.stack([summary.is_robust for summary in summaries])
    estimate = summaries[0].records[0].estimate(flags.mean(0))
    ratio = 100 * len(flags) / sum(calibration.accuracies)
    low, high = estimate.interval
    return UARResult(
        kind,
        estimate.accuracy * ratio,
        Interval(low * ratio, high * ratio),
        tuple(float(row.mean()) for row in flags),
    )
