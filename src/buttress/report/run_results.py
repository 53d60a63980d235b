"""Results of runs as the report shows them; all corruptions are one column."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.errors import CorruptFileError
from buttress.registry import normalize_name
from buttress.report.analyses import EpsCurveResult, SparsityView
from buttress.report.formatting import canonical_threat
from buttress.results.attack_record import (
    CORRUPTION_ATTACK,
    AttackRecord,
    read_attack_record,
    skipped_square_queries,
    uses_official_images,
)
from buttress.results.diagnosis import (
    Diagnosis,
    Finding,
    deduplicate_findings,
    parse_findings,
    warning_texts,
)
from buttress.results.evaluation import CorruptionSummary, Evaluation, summarize_corruptions
from buttress.results.run import Run, RunState
from buttress.results.run_spec import RunSpec
from buttress.statistics import Interval, wilson_interval

CLEAN = "clean"


@dataclass(frozen=True)
class AccuracyEstimate:
    """An accuracy with its 95% interval."""

    hits: float  # whole, but for the mean over corrupted copies
    images: int
    interval: Interval | None = None  # where it is not Wilson's

    @property
    def value(self) -> float:
        return self.hits / self.images

    @property
    def low(self) -> float:
        return (self.interval or wilson_interval(self.hits, self.images)).low

    @property
    def high(self) -> float:
        return (self.interval or wilson_interval(self.hits, self.images)).high


@dataclass(frozen=True)
class AttackDefinition:
    """Settings of an attack. Two runs share a column only if all of them are equal."""

    name: str
    attack: str = ""
    threat: str = ""
    args: str = ""  # "steps=20, restarts=2"

    @property
    def is_clean(self) -> bool:
        return self.name == CLEAN


@dataclass(frozen=True)
class SuiteEntryResult:
    """Result of one attack on one model."""

    definition: AttackDefinition
    position: int
    share: AccuracyEstimate
    warnings: tuple[str, ...]
    made: Mapping[str, Any]  # seed, cost, versions and the rest of the record's metadata
    flags: bytes = b""  # a bit per image, correct or not; empty without per-sample results


@dataclass(frozen=True)
class ClassResult:
    """Accuracies of one class."""

    name: str
    clean: AccuracyEstimate | None
    worst: AccuracyEstimate


@dataclass(frozen=True)
class SuiteResults:
    """The records of one suite on one run."""

    suite: str
    dataset: str
    split: str
    images: str  # a hash of the pixels and of the sample ids, in order
    results: Mapping[str, SuiteEntryResult]
    unreadable: Mapping[str, str]  # attack -> why its record cannot be used
    expected: tuple[str, ...]  # the attacks of the suite, where a record says so
    is_robust: NDArray[np.bool_]  # (N,) correct under every attack in `results`
    classes: tuple[ClassResult, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of the evaluation."""
        return deduplicate_findings(
            f for r in self.results.values() for f in parse_findings(r.made)
        )

    def is_of(self, weights: str) -> bool:
        """Whether the evaluation is of the weights with this hash."""
        return all(r.made.get("weights_digest") == weights for r in self.results.values())


@dataclass(frozen=True)
class AnalysisSummary:
    """Summary sentence of an analysis, or why it does not apply."""

    name: str
    summary: str = ""
    reason: str = ""


@dataclass(frozen=True)
class RunResults:
    """One run: specification, state and results."""

    run: Run
    slug: str
    place: str  # the folder, as seen from the root that was asked for
    spec: RunSpec
    header: Mapping[str, Any]
    state: RunState
    message: str
    suites: tuple[SuiteResults, ...] = ()
    sparsity: SparsityView | None = None
    curves: tuple[EpsCurveResult, ...] = ()
    galleries: tuple[str, ...] = ()  # names of analysis files; their images are read page by page
    others: tuple[str, ...] = ()  # further analyses, shown by their saved pictures
    said: tuple[AnalysisSummary, ...] = ()  # sentences on the analyses that are drawn here
    problems: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None  # of the doctor
    suffix: str = ""  # tells runs apart that share model and training

    @property
    def key(self) -> str:
        return str(self.header.get("key", ""))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of the evaluations that the doctor does not have."""
        doctor_checks = {f.check for f in self.diagnosis.findings} if self.diagnosis else set()
        findings = deduplicate_findings(f for suite in self.suites for f in suite.findings)
        return tuple(f for f in findings if f.check not in doctor_checks)

    @property
    def model(self) -> str:
        return self.spec.model

    @property
    def label(self) -> str:
        return f"{self.model} {self.suffix}".strip()

    @property
    def category(self) -> str:
        return str(self.header.get("category", ""))

    @property
    def objective(self) -> str:
        return self.spec.recipe.objective.name

    @property
    def is_standard(self) -> bool:
        return normalize_name(self.objective) == "standard"

    @property
    def trained_on(self) -> str:
        """Threat model of training; empty for standard training."""
        return "" if self.is_standard else self.spec.recipe.threat or ""

    @property
    def described(self) -> str:
        """For a sentence: ``vit_tiny trained with pgd_at``."""
        how = "with standard training" if self.is_standard else f"trained with {self.objective}"
        return f"{self.label} {how}"


@dataclass(frozen=True)
class UnreadableRun:
    """A folder with a ``run.json`` that cannot be read."""

    place: str
    reason: str


@dataclass(frozen=True)
class ReportData:
    """Everything found below the roots."""

    runs: tuple[RunResults, ...]
    broken: tuple[UnreadableRun, ...]


CORRUPTIONS_COLUMN = "corruptions"


def corruption_result(
    records: Mapping[str, AttackRecord], expected: Sequence[str], warnings: tuple[str, ...]
) -> SuiteEntryResult | None:
    """One result for all corruptions; None if there are none, or while some are missing."""
    corruption_records = [r for r in records.values() if r.is_corruption]
    summary = summarize_corruptions(corruption_records)
    if summary is None or set(expected) - set(records):
        return None
    images = len(summary.image_accuracy)
    return SuiteEntryResult(
        definition=AttackDefinition(
            CORRUPTIONS_COLUMN,
            CORRUPTION_ATTACK,
            "",
            describe_corruptions(summary, corruption_records),
        ),
        position=min(int(r.metadata.get("suite_position", 10**6)) for r in corruption_records),
        share=AccuracyEstimate(summary.accuracy * images, images, summary.interval),
        warnings=warnings,
        made=combine_metadata(corruption_records),
    )


def combine_metadata(records: Sequence[AttackRecord]) -> dict[str, Any]:
    """The metadata of the first, with the cost and the findings of all."""
    costs = {
        key: sum(float(r.metadata.get(key) or 0) for r in records)
        for key in ("forward_passes", "backward_passes", "seconds")
    }
    findings = deduplicate_findings(f for r in records for f in parse_findings(r.metadata))
    findings_json = {"findings": [f.model_dump(mode="json") for f in findings]}
    return {**records[0].metadata, **costs, **findings_json}


def describe_corruptions(summary: CorruptionSummary, records: Sequence[AttackRecord]) -> str:
    """``fog, snow; severities 1, 2, 3; generated; included in the worst case``."""
    severities = sorted({s for row in summary.accuracies.values() for s in row})
    return "; ".join(
        [
            ", ".join(summary.accuracies),
            f"severities {', '.join(map(str, severities))}",
            *describe_image_origin(records),
            "included in the worst case"
            if summary.in_worst_case
            else "excluded from the worst case",
        ]
    )


def describe_image_origin(records: Sequence[AttackRecord]) -> list[str]:
    """Origin of the corrupted images: official or generated."""
    generated = [r for r in records if not uses_official_images(r)]
    if not generated:
        return ["official images"]
    evidence = [f.evidence for r in generated for f in parse_findings(r.metadata)]
    unofficial = dict.fromkeys(str(e["corruption"]) for e in evidence if "corruption" in e)
    share = (
        "generated by Buttress"
        if len(generated) == len(records)
        else f"{len(generated)} of {len(records)} generated by Buttress"
    )
    return [f"{share}, {', '.join(unofficial)} not as published" if unofficial else share]


def collapse_corruption_names(
    names: Sequence[str], corruption_names: Sequence[str]
) -> tuple[str, ...]:
    """Names of a suite's entries, with one in place of all corruptions."""
    return tuple(
        dict.fromkeys(CORRUPTIONS_COLUMN if name in corruption_names else name for name in names)
    )


def collect_suite(folder: Path, place: str) -> SuiteResults | None:
    """The usable records of a suite; None where there is not one file."""
    records: list[AttackRecord] = []
    unreadable: dict[str, str] = {}
    for path in sorted(folder.glob("*.parquet")):
        try:
            record = read_attack_record(path)
        except (CorruptFileError, OSError):
            unreadable[path.stem] = f"{place}/{path.name} is unreadable; evaluate again"
            continue
        if len(record):
            records.append(record)
        else:
            unreadable[path.stem] = f"{place}/{path.name} contains no images"
    records.sort(key=lambda r: (r.name != CLEAN, suite_position(r), r.name))
    usable, refused = select_consistent_records(records, place)
    return (
        build_suite_results(folder.name, usable, {**unreadable, **refused})
        if usable or unreadable
        else None
    )


def select_consistent_records(
    records: Sequence[AttackRecord], display_path: str
) -> tuple[dict[str, AttackRecord], dict[str, str]]:
    """Split records into those of the same images and weights as the first, and others."""
    usable: dict[str, AttackRecord] = {}
    refused: dict[str, str] = {}
    for record in records:
        first = records[0]
        if not np.array_equal(record.ids, first.ids):
            refused[record.name] = (
                f"{display_path}/{record.name}: not the same images as {first.name}"
            )
        elif record.metadata.get("data_fingerprint") != first.metadata.get("data_fingerprint"):
            refused[record.name] = (
                f"{display_path}/{record.name}: not the same pixels as {first.name}"
            )
        elif record.metadata.get("weights_digest") != first.metadata.get("weights_digest"):
            refused[record.name] = (
                f"{display_path}/{record.name}: not the same weights as {first.name}"
            )
        else:
            usable[record.name] = record
    return usable, refused


def build_suite_results(
    suite: str, records: Mapping[str, AttackRecord], unreadable: Mapping[str, str]
) -> SuiteResults:
    first_metadata: Mapping[str, Any] = next(iter(records.values())).metadata if records else {}
    ids = next(iter(records.values())).ids.tobytes() if records else b""
    data_fingerprint = str(first_metadata.get("data_fingerprint", "")).encode()
    evaluation = Evaluation(suite, records)
    is_robust = evaluation.is_robust if records else np.zeros(0, dtype=np.bool_)
    results = {n: build_entry_result(r) for n, r in records.items() if not r.is_corruption}
    corrupted = [str(n) for n in first_metadata.get("suite_corruptions") or ()]
    if corruption_column := corruption_result(records, corrupted, tuple(warnings(first_metadata))):
        results[CORRUPTIONS_COLUMN] = corruption_column
    return SuiteResults(
        suite=suite,
        dataset=str(first_metadata.get("dataset", "")),
        split=str(first_metadata.get("split", "")),
        images=hashlib.sha256(data_fingerprint + ids).hexdigest() if records else "",
        results=results,
        unreadable={
            CORRUPTIONS_COLUMN if n in corrupted else n: reason for n, reason in unreadable.items()
        },
        expected=collapse_corruption_names(
            [str(n) for n in first_metadata.get("suite_entries") or ()], corrupted
        ),
        is_robust=is_robust,
        classes=per_class(evaluation) if records else (),
    )


def build_entry_result(record: AttackRecord) -> SuiteEntryResult:
    meta = record.metadata
    args = dict(meta.get("args") or {})
    if skipped_square_queries(meta):
        args["square_queries"] = "skipped"  # not the standard AutoAttack: a column of its own
    return SuiteEntryResult(
        definition=AttackDefinition(
            name=record.name,
            attack=str(meta.get("attack", "")),
            threat=canonical_threat(str(meta.get("threat") or "")),
            args=format_arguments(args),
        ),
        position=suite_position(record),
        share=AccuracyEstimate(int(record.correct.sum()), len(record)),
        warnings=tuple(warnings(meta)),
        made=meta,
        flags=np.packbits(record.correct).tobytes(),
    )


def warnings(meta: Mapping[str, Any]) -> list[str]:
    """Warnings of a record."""
    found = [str(w) for w in meta.get("warnings") or ()]
    found += [text for text in warning_texts(parse_findings(meta)) if text not in found]
    if count := meta.get("nonfinite_images"):
        found.append(
            f"a loss or gradient was not finite for {count} images; they count as robust "
            "unless the attack fooled the model at another point"
        )
    return found


def per_class(evaluation: Evaluation) -> tuple[ClassResult, ...]:
    """Accuracies of each class that occurs."""
    record = next(iter(evaluation.records.values()))
    names = [str(n) for n in record.metadata.get("class_names") or ()]
    clean = evaluation.records.get(CLEAN)
    labels = np.asarray(record.labels)
    total = np.bincount(labels)
    worst = np.bincount(labels, weights=evaluation.is_robust)
    right = np.bincount(labels, weights=clean.correct) if clean is not None else None
    return tuple(
        ClassResult(
            name=names[c] if c < len(names) else str(c),
            clean=AccuracyEstimate(int(right[c]), int(total[c])) if right is not None else None,
            worst=AccuracyEstimate(int(worst[c]), int(total[c])),
        )
        for c in np.flatnonzero(total)
    )


def format_arguments(args: Mapping[str, Any]) -> str:
    """``steps=20, restarts=2``, the same text for the same arguments."""
    values = {
        k: v if isinstance(v, str) else json.dumps(v, sort_keys=True) for k, v in args.items()
    }
    return ", ".join(f"{k}={values[k]}" for k in sorted(values))


def suite_position(record: AttackRecord) -> int:
    """Where the suite lists the attack; last if the record does not say."""
    return int(record.metadata.get("suite_position", 10**6))
