"""The evaluation of a model with a suite: accuracies, worst case, corruptions, warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.errors import RunError
from buttress.results.attack_record import (
    AttackRecord,
    read_attack_record,
)
from buttress.results.core import WORST_CASE
from buttress.results.diagnosis import (
    Diagnosis,
    Finding,
    all_trustworthy,
    deduplicate_findings,
    parse_findings,
    read_diagnosis,
    warning_texts,
)
from buttress.statistics import Interval, mean_interval, wilson_interval


@dataclass(frozen=True)
class CorruptionSummary:
    """Accuracy on corrupted copies of all images, also of those misclassified clean.

    ``mce`` is the mean over corruptions of the mean error over severities. It is not divided by the
    errors of AlexNet, so that ``1 - mce`` is the accuracy.
    """

    accuracies: dict[str, dict[int, float]]  # corruption -> severity -> accuracy
    image_accuracy_by_corruption: dict[
        str, NDArray[np.float64]
    ]  # corruption -> (N,) fraction of correct copies
    in_worst_case: bool  # count towards worst-case robust accuracy

    @property
    def image_accuracy(self) -> NDArray[np.float64]:
        """(N,) fraction of the corrupted copies of each image that are classified correctly."""
        return np.asarray(np.mean([*self.image_accuracy_by_corruption.values()], axis=0))

    @property
    def accuracy(self) -> float:
        return float(self.image_accuracy.mean()) if len(self.image_accuracy) else float("nan")

    @property
    def mce(self) -> float:
        return 1 - self.accuracy

    @property
    def interval(self) -> Interval:
        """The 95% interval of the accuracy, over the test images."""
        return mean_interval(self.image_accuracy)

    def accuracy_by_corruption(self) -> dict[str, float]:
        """The accuracy of each corruption, over its severities."""
        return {name: float(np.mean([*row.values()])) for name, row in self.accuracies.items()}

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "accuracy": self.accuracy,
            "interval": self.interval,
            "mce": self.mce,
            "in_worst_case": self.in_worst_case,
            "by_corruption": {
                name: {
                    "accuracy": mean,
                    "interval": mean_interval(self.image_accuracy_by_corruption[name]),
                    "by_severity": self.accuracies[name],
                    "intervals": {
                        severity: wilson_interval(
                            share * len(self.image_accuracy), len(self.image_accuracy)
                        )
                        for severity, share in self.accuracies[name].items()
                    },
                }
                for name, mean in self.accuracy_by_corruption().items()
            },
        }


def summarize_corruptions(records: Iterable[AttackRecord]) -> CorruptionSummary | None:
    """Summarize the corruptions among the records; None if there are none."""
    groups: dict[str, dict[int, AttackRecord]] = {}
    for record in records:
        if record.is_corruption:
            args = record.metadata["args"]
            groups.setdefault(args["corruption"], {})[int(args["severity"])] = record
    if not groups:
        return None
    return CorruptionSummary(
        {
            name: {s: by_severity[s].accuracy for s in sorted(by_severity)}
            for name, by_severity in groups.items()
        },
        {
            n: np.mean([r.correct for r in by_severity.values()], axis=0)
            for n, by_severity in groups.items()
        },
        all(r.in_worst_case for by_severity in groups.values() for r in by_severity.values()),
    )


@dataclass(frozen=True)
class Evaluation:
    """The records of one suite on one model: all images, every attack and corruption."""

    suite: str
    records: Mapping[str, AttackRecord]
    warnings: tuple[str, ...] = ()  # reasons why the numbers may be wrong
    diagnosis: Diagnosis | None = None  # of the same weights, if the doctor was run

    def __post_init__(self) -> None:
        id_arrays = {r.ids.tobytes() for r in self.records.values()}
        if len(id_arrays) > 1:
            sizes = ", ".join(f"{n}: {len(r)}" for n, r in self.records.items())
            raise RunError(
                f"the records of suite {self.suite!r} are not of the same images ({sizes}); "
                "evaluate it again"
            )

    def __len__(self) -> int:
        return len(next(iter(self.records.values()))) if self.records else 0

    @property
    def correct(self) -> dict[str, NDArray[np.bool_]]:
        return {name: record.correct for name, record in self.records.items()}

    @property
    def accuracy(self) -> dict[str, float]:
        return {name: record.accuracy for name, record in self.records.items()}

    @property
    def is_robust(self) -> NDArray[np.bool_]:
        """(N,) correct clean and under every attack and corruption that counts."""
        return np.logical_and.reduce([r.correct for r in self.records.values() if r.in_worst_case])

    @property
    def worst_case(self) -> float:
        """Worst-case robust accuracy: mean of the per-sample minimum over the suite."""
        return float(self.is_robust.mean()) if len(self) else float("nan")

    def interval(self, name: str = WORST_CASE) -> Interval:
        """The 95% interval of an accuracy, over the test images."""
        flags = self.is_robust if name == WORST_CASE else self.records[name].correct
        return wilson_interval(int(flags.sum()), len(flags))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of the records and of the doctor; the most severe of each check."""
        stored = [f for r in self.records.values() for f in parse_findings(r.metadata)]
        return deduplicate_findings([*stored, *(self.diagnosis.findings if self.diagnosis else ())])

    @property
    def is_trustworthy(self) -> bool:
        return all_trustworthy(self.findings)

    @property
    def attack_records(self) -> dict[str, AttackRecord]:
        """The records that are not of corruptions."""
        return {n: r for n, r in self.records.items() if not r.is_corruption}

    @property
    def corruptions(self) -> CorruptionSummary | None:
        """All corruptions together; None if the suite has none."""
        return summarize_corruptions(self.records.values())

    def per_class(self) -> dict[str, dict[str, float]]:
        """Class -> number of images, and accuracy under each attack and in the worst case."""
        return {
            name: {
                "images": len(next(iter(columns.values()))),
                **{n: float(c.mean()) for n, c in columns.items()},
            }
            for name, columns in self._values_by_class()
        }

    def class_intervals(self) -> dict[str, dict[str, Interval]]:
        """Class -> the 95% interval of each of its accuracies."""
        return {
            name: {
                n: wilson_interval(int(c.sum()), len(c)) if c.dtype == bool else mean_interval(c)
                for n, c in columns.items()
            }
            for name, columns in self._values_by_class()
        }

    def _values_by_class(self) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
        """Yield each class with the results of its images, per attack and in the worst case."""
        first = next(iter(self.records.values()))
        names = [str(n) for n in first.metadata.get("class_names") or ()]
        columns: dict[str, NDArray[Any]] = {n: r.correct for n, r in self.attack_records.items()}
        if (corrupted := self.corruptions) is not None:
            columns["corruptions"] = corrupted.image_accuracy
        columns[WORST_CASE] = self.is_robust
        order = np.argsort(first.labels, kind="stable")
        labels, starts = np.unique(first.labels[order], return_index=True)
        groups = np.split(order, starts[1:])
        for label, rows in zip(labels.tolist(), groups, strict=True):
            name = names[label] if label < len(names) else str(label)
            yield name, {n: c[rows] for n, c in columns.items()}

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        rows = {
            n: {"accuracy": r.accuracy, "interval": self.interval(n)}
            for n, r in self.attack_records.items()
        }
        corrupted = self.corruptions
        return {
            "suite": self.suite,
            "images": len(self),
            "attacks": rows,
            **({} if corrupted is None else {"corruptions": corrupted.to_dict()}),
            "worst_case": {"accuracy": self.worst_case, "interval": self.interval()},
            "is_trustworthy": self.is_trustworthy,
            "per_class": self._per_class_json() if len(self) else {},
            "warnings": list(self.warnings),
            "findings": [f.model_dump(mode="json") for f in self.findings],
        }

    def _per_class_json(self) -> dict[str, Any]:
        intervals = self.class_intervals()
        return {n: {**row, "intervals": intervals[n]} for n, row in self.per_class().items()}


def load_evaluation(folder: Path) -> Evaluation:
    """Load the evaluation in a folder."""
    found = [read_attack_record(p) for p in sorted(folder.glob("*.parquet"))]
    found.sort(key=lambda r: r.metadata.get("suite_position", 0))
    warnings = tuple(found[0].metadata.get("warnings", ())) if found else ()
    records = {r.name: r for r in found}
    return Evaluation(folder.name, records, warnings + record_warnings(records))


def with_diagnosis(evaluation: Evaluation, path: Path) -> Evaluation:
    """Add the doctor's diagnosis of the same weights, if there is one."""
    diagnosis, first = read_diagnosis(path), next(iter(evaluation.records.values()), None)
    if (
        diagnosis is None
        or first is None
        or first.metadata.get("weights_digest") != diagnosis.weights_digest
    ):
        return evaluation
    new_warnings = [t for t in warning_texts(diagnosis.findings) if t not in evaluation.warnings]
    return replace(evaluation, diagnosis=diagnosis, warnings=(*evaluation.warnings, *new_warnings))


def record_warnings(records: Mapping[str, AttackRecord]) -> tuple[str, ...]:
    """Warnings about how the records were made."""
    warnings = [
        f"{n}: a loss or gradient was not finite for {r.metadata['nonfinite_images']} images; they "
        "count as robust unless the attack fooled the model at another point"
        for n, r in records.items()
        if r.metadata.get("nonfinite_images", 0)
    ]
    warnings += [
        f"{n}: the outputs of the model were NaN for {int(np.isnan(r.loss).sum())} images"
        for n, r in records.items()
        if np.isnan(r.loss).any()
    ]
    stored_warnings = [w for r in [*records.values()][:1] for w in r.metadata.get("warnings", ())]
    findings = deduplicate_findings(
        [f for r in records.values() for f in parse_findings(r.metadata)]
    )
    warnings += [text for text in warning_texts(findings) if text not in stored_warnings]
    last_record = [*records.values()][-1:]
    if last_record and last_record[0].metadata.get("mode") == "worst_case":
        warnings.append(
            "worst-case mode: each attack ran only on the images robust to the attacks before it, "
            "so its accuracy is the robust accuracy after all attacks so far"
            + (
                ", included corruptions too"
                if any(r.is_corruption and r.in_worst_case for r in records.values())
                else ""
            )
        )
    if last_record and len(last_record[0]) < last_record[0].metadata.get("images_available", 0):
        warnings.append(
            f"stopped early: evaluated {len(last_record[0])} of "
            f"{last_record[0].metadata['images_available']} images, drawn at random, until the 95% "
            f"interval of the worst-case robust accuracy was narrower than "
            f"{100 * last_record[0].metadata['interval_width']:g} points"
        )
    return tuple(warnings)
