"""The read model of an evaluation: accuracies, worst case, classes, findings, warnings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.errors import CorruptFileError, RunError, UserError
from buttress.results.attack_record import (
    AttackDefinition,
    AttackRecord,
    read_attack_record,
)
from buttress.results.core import CLEAN, WORST_CASE, AccuracyEstimate
from buttress.results.corruption_summary import CorruptionSummary, summarize_corruptions
from buttress.results.diagnosis import (
    Diagnosis,
    Finding,
    all_trustworthy,
    deduplicate_findings,
    warning_texts,
)
from buttress.results.display import describe_evaluation, evaluation_html
from buttress.results.suite_spec import CORRUPTION_ATTACK
from buttress.results.threat_summary import (
    ThreatSummary,
    UARResult,
    summarize_threats,
    unforeseen_robustness,
)
from buttress.statistics import Interval, effective_image_fraction

CORRUPTIONS = "corruptions"  # the entry of a table that stands for all corruptions


@dataclass(frozen=True)
class SuiteEntryResult:
    """Result of one attack, or of all corruptions together, as a column of a table."""

    definition: AttackDefinition
    suite_position: int
    estimate: AccuracyEstimate
    warnings: tuple[str, ...]
    findings: tuple[Finding, ...]
    metadata: Mapping[str, Any]  # seed, cost, versions
    correct: NDArray[np.bool_] | None = None  # (N,); None for corruptions

    @property
    def is_trustworthy(self) -> bool:
        return all_trustworthy(self.findings)


@dataclass(frozen=True)
class ClassResult:
    """Accuracies of one class, by attack, and in the worst case."""

    images: int
    accuracy: dict[str, AccuracyEstimate]

    def to_dict(self) -> dict[str, Any]:
        return {"images": self.images, **{n: e.to_dict() for n, e in self.accuracy.items()}}


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The records of one suite on one model: all images, every attack and corruption."""

    suite: str
    records: Mapping[str, AttackRecord]
    diagnosis: Diagnosis | None = None  # of the same weights, if the doctor was run
    unreadable: Mapping[str, str] = field(default_factory=dict)  # name -> why it cannot be used

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

    def __repr__(self) -> str:
        return describe_evaluation(self)

    def _repr_html_(self) -> str:
        return evaluation_html(self)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the first record: dataset, split and weights are the same in all."""
        return next(iter(self.records.values())).metadata if self.records else {}

    @property
    def dataset(self) -> str:
        return str(self.metadata.get("dataset", ""))

    @property
    def split(self) -> str:
        return str(self.metadata.get("split", ""))

    @property
    def sample_ids(self) -> NDArray[np.int64]:
        return next(iter(self.records.values())).ids

    @property
    def is_distinct(self) -> NDArray[np.bool_]:
        """(N,) false for images that are copies of one before them."""
        groups = next(iter(self.records.values())).duplicate_groups
        return np.asarray(groups == np.arange(len(groups)))

    @property
    def images_digest(self) -> str:
        """A hash of the pixels and of the sample ids, in order."""
        fingerprint = str(self.metadata.get("data_fingerprint", "")).encode()
        return hashlib.sha256(fingerprint + self.sample_ids.tobytes()).hexdigest()

    def has_weights(self, digest: str | None) -> bool:
        """Whether all records are of the weights with this digest."""
        return all(r.metadata.get("weights_digest") == digest for r in self.records.values())

    @property
    def correct(self) -> dict[str, NDArray[np.bool_]]:
        return {name: record.correct for name, record in self.records.items()}

    @property
    def accuracy(self) -> dict[str, float]:
        return {name: record.accuracy for name, record in self.records.items()}

    @cached_property
    def is_robust(self) -> NDArray[np.bool_]:
        """(N,) correct clean, under every attack and corruption that counts, and its queries."""
        counted = [r.is_robust for r in self.records.values() if r.in_worst_case]
        return np.logical_and.reduce(counted) if counted else np.zeros(0, dtype=np.bool_)

    @cached_property
    def robust_scores(self) -> NDArray[Any]:
        """(N,) `is_robust`; of a randomized model the smallest fraction of correct draws."""
        counted = [r.robust_scores for r in self.records.values() if r.in_worst_case]
        return np.minimum.reduce(counted) if counted else self.is_robust

    @property
    def draws(self) -> int:
        """Draws of the randomness of the model that accuracies are means over; 1: no randomness."""
        return max((r.draws for r in self.records.values()), default=1)

    @property
    def worst_case(self) -> float:
        """Worst-case robust accuracy: mean of the per-sample minimum over the suite."""
        return self.estimate().accuracy

    def estimate(self, name: str = WORST_CASE) -> AccuracyEstimate:
        """The accuracy under an attack, or in the worst case, with its 95% interval.

        Of a randomized model it is the mean over draws; see `every_draw`.
        """
        if not self.records:
            return AccuracyEstimate.from_scores(self.is_robust)
        scores = self.robust_scores if name == WORST_CASE else self.records[name].scores
        return next(iter(self.records.values())).estimate(scores)

    def every_draw(self, name: str = WORST_CASE) -> AccuracyEstimate:
        """The share of images that are correct in every draw; the others some draw loses."""
        if not self.records:
            return AccuracyEstimate.from_scores(self.is_robust)
        flags = self.is_robust if name == WORST_CASE else self.records[name].correct
        return next(iter(self.records.values())).estimate(flags)

    def interval(self, name: str = WORST_CASE) -> Interval:
        """The 95% interval of an accuracy, over the test images."""
        return self.estimate(name).interval

    @property
    def expected_entries(self) -> tuple[str, ...]:
        """Names of the entries of the suite; empty if the records do not say."""
        return tuple(map(str, self.metadata.get("suite_entries") or ()))

    @property
    def missing_entries(self) -> tuple[str, ...]:
        return tuple(name for name in self.expected_entries if name not in self.records)

    def check_complete(self, name: str) -> None:
        """Raise if records are of different weights, or attacks of the suite are missing."""
        if not self.records:
            raise UserError(f"{name} has no attack records; run `buttress evaluate`")
        if not self.has_weights(self.metadata.get("weights_digest")):
            raise RunError(f"{name} mixes records of different weights; evaluate it again")
        if self.missing_entries:
            raise UserError(
                f"{name} is incomplete (missing: {', '.join(self.missing_entries)}); run the same "
                "`buttress evaluate` again to finish it"
            )

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of the records and of the doctor; the most severe of each check."""
        stored = [f for r in self.records.values() for f in r.findings]
        return deduplicate_findings([*stored, *(self.diagnosis.findings if self.diagnosis else ())])

    @property
    def is_trustworthy(self) -> bool:
        return all_trustworthy(self.findings)

    @cached_property
    def shared_warnings(self) -> tuple[str, ...]:
        """Warnings about the whole evaluation: how it was run, and those of the doctor."""
        of_doctor = self.diagnosis.findings if self.diagnosis else ()
        return (*self._protocol_warnings(), *warning_texts(of_doctor))

    def _protocol_warnings(self) -> list[str]:
        warnings: list[str] = []
        last = [*self.records.values()][-1].metadata if self.records else {}
        if last.get("mode") == "worst_case":
            has_corruptions = self.corruptions is not None and self.corruptions.in_worst_case
            warnings.append(
                "worst-case mode: each attack ran only on the images robust to the attacks before "
                "it, so its accuracy is the robust accuracy after all attacks so far"
                + (", included corruptions too" if has_corruptions else "")
            )
        if self.draws > 1:
            lost = 1 - self.every_draw().accuracy
            warnings.append(
                f"accuracies are means over {self.draws} draws of the model's randomness; in the "
                f"worst case {lost:.1%} of the images are lost by at least one draw"
            )
        if len(self) < last.get("images_available", 0):
            warnings.append(
                f"stopped early: evaluated {len(self)} of {last['images_available']} images, drawn "
                "at random, until the 95% interval of the worst-case robust accuracy was narrower "
                f"than {100 * last['interval_width']:g} points"
            )
        return warnings

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Every reason why the accuracies may be wrong, once."""
        records = self.records.values()
        stored = map(str, self.metadata.get("warnings") or ())
        numerical = [f"{r.name}: {text}" for r in records for text in r.numerical_warnings]
        findings = deduplicate_findings(f for r in records for f in r.findings)
        texts = [*stored, *numerical, *warning_texts(findings), *self.shared_warnings]
        return tuple(dict.fromkeys(texts))

    @property
    def attack_records(self) -> dict[str, AttackRecord]:
        """The records that are not of corruptions."""
        return {n: r for n, r in self.records.items() if not r.is_corruption}

    @cached_property
    def threats(self) -> dict[str, ThreatSummary]:
        """Threat model -> robust accuracy under all its attacks, and their passes."""
        return summarize_threats(self.records.values())

    @cached_property
    def uar(self) -> dict[str, UARResult]:
        """UAR of each kind of threat model with records at all six calibrated sizes."""
        return unforeseen_robustness(self.threats, self.dataset)

    @cached_property
    def corruptions(self) -> CorruptionSummary | None:
        """All corruptions together; None if the suite has none."""
        return summarize_corruptions(self.records.values())

    @cached_property
    def results(self) -> dict[str, SuiteEntryResult]:
        """Result of each attack, and one of all corruptions if none of them is missing."""
        results = {
            n: SuiteEntryResult(
                r.definition,
                r.suite_position,
                r.estimate(r.scores),
                r.warnings,
                r.findings,
                r.metadata,
                r.correct,
            )
            for n, r in self.attack_records.items()
        }
        if self.corruptions is not None and set(self._corruption_names) <= set(self.records):
            results[CORRUPTIONS] = _corruption_result(self.corruptions)
        return results

    @property
    def _corruption_names(self) -> list[str]:
        return [str(n) for n in self.metadata.get("suite_corruptions") or ()]

    def result_name(self, entry: str) -> str:
        """Name in `results` of an entry of the suite."""
        return CORRUPTIONS if entry in self._corruption_names else entry

    def per_class(self) -> dict[str, ClassResult]:
        """Class -> number of images, and accuracy under each attack and in the worst case."""
        if not self.records:
            return {}
        first = next(iter(self.records.values()))
        labels, groups = first.labels, first.duplicate_groups
        names = [str(n) for n in self.metadata.get("class_names") or ()]
        columns: dict[str, NDArray[Any]] = {n: r.scores for n, r in self.attack_records.items()}
        if self.corruptions is not None:
            columns[CORRUPTIONS] = self.corruptions.image_accuracy
        columns[WORST_CASE] = self.robust_scores
        order = np.argsort(labels, kind="stable")
        present, starts = np.unique(labels[order], return_index=True)
        return {
            names[label] if label < len(names) else str(label): ClassResult(
                len(rows),
                {
                    n: AccuracyEstimate.from_scores(c[rows], effective_image_fraction(groups[rows]))
                    for n, c in columns.items()
                },
            )
            for label, rows in zip(present.tolist(), np.split(order, starts[1:]), strict=True)
        }

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        corrupted = self.corruptions
        return {
            "suite": self.suite,
            "images": len(self),
            "attacks": {n: self._accuracy_dict(n) for n in self.attack_records},
            **({} if corrupted is None else {CORRUPTIONS: corrupted.to_dict()}),
            WORST_CASE: self._accuracy_dict(WORST_CASE),
            "threats": {name: summary.to_dict() for name, summary in self.threats.items()},
            **({"uar": {kind: r.to_dict() for kind, r in self.uar.items()}} if self.uar else {}),
            **({} if self.draws == 1 else {"draws": self.draws}),
            "is_trustworthy": self.is_trustworthy,
            "per_class": {n: c.to_dict() for n, c in self.per_class().items()},
            "warnings": list(self.warnings),
            "findings": [f.model_dump(mode="json") for f in self.findings],
        }

    def _accuracy_dict(self, name: str) -> dict[str, Any]:
        """An accuracy with its interval, and how many images no draw loses."""
        content = self.estimate(name).to_dict()
        if self.draws > 1:
            content["every_draw"] = self.every_draw(name).to_dict()
        if name in self.records and self.records[name].draws > 1:
            content["draw_accuracies"] = self.records[name].metadata.get("draw_accuracies", [])
        return content

    def with_diagnosis(self, diagnosis: Diagnosis | None) -> Evaluation:
        """Add the doctor's diagnosis, if it is of the same weights."""
        is_same = diagnosis is not None and self.has_weights(diagnosis.weights_digest)
        return replace(self, diagnosis=diagnosis) if is_same and self.records else self


def _corruption_result(summary: CorruptionSummary) -> SuiteEntryResult:
    """One result for all corruptions: the metadata of the first, the cost of all."""
    records = summary.all_records
    costs = {
        key: sum(float(r.metadata.get(key) or 0) for r in records)
        for key in ("forward_passes", "backward_passes", "seconds")
    }
    costs["peak_memory_mb"] = max(float(r.metadata.get("peak_memory_mb") or 0) for r in records)
    return SuiteEntryResult(
        AttackDefinition(CORRUPTIONS, CORRUPTION_ATTACK, "", summary.describe()),
        min(r.suite_position for r in records),
        summary.estimate,
        tuple(dict.fromkeys(text for r in records for text in r.warnings)),
        deduplicate_findings(f for r in records for f in r.findings),
        {**records[0].metadata, **costs},
    )


def _suite_order(record: AttackRecord) -> tuple[bool, int, str]:
    return record.name != CLEAN, record.suite_position, record.name


def load_evaluation(folder: Path) -> Evaluation:
    """Load the evaluation in a folder; raise if a record cannot be used."""
    records = map(read_attack_record, sorted(folder.glob("*.parquet")))
    return Evaluation(folder.name, {r.name: r for r in sorted(records, key=_suite_order)})


def read_usable_evaluation(folder: Path, display_path: str) -> Evaluation | None:
    """Load the records that fit together, and why others do not; None without any file."""
    records: list[AttackRecord] = []
    unreadable: dict[str, str] = {}
    for path in sorted(folder.glob("*.parquet")):
        try:
            record = read_attack_record(path)
        except (CorruptFileError, OSError):
            unreadable[path.stem] = f"{display_path}/{path.name} is unreadable; evaluate again"
            continue
        if len(record):
            records.append(record)
        else:
            unreadable[path.stem] = f"{display_path}/{path.name} contains no images"
    records.sort(key=_suite_order)
    usable: dict[str, AttackRecord] = {}
    for record in records:
        if difference := _difference(record, records[0]):
            reason = f"not the same {difference} as {records[0].name}"
            unreadable[record.name] = f"{display_path}/{record.name}: {reason}"
        else:
            usable[record.name] = record.drop_values(records[0])
    return Evaluation(folder.name, usable, None, unreadable) if usable or unreadable else None


def _difference(record: AttackRecord, first: AttackRecord) -> str:
    """What keeps two records from being of one evaluation; empty if nothing does."""
    if not np.array_equal(record.ids, first.ids):
        return "images"
    for key, name in (("data_fingerprint", "pixels"), ("weights_digest", "weights")):
        if record.metadata.get(key) != first.metadata.get(key):
            return name
    return ""
