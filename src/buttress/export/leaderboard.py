"""Leaderboard records in the form of RobustBench, for AutoAttack and for common corruptions.

A record has an accuracy only if it was measured as on the leaderboard: the standard AutoAttack, or
all official corrupted images (arXiv:1903.12261, and those of CIFAR), on the whole test split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from buttress import __version__
from buttress.attacks.autoattack import AutoAttack
from buttress.export.verified import VerifiedResults, public_dataset_name
from buttress.registry import normalize_name
from buttress.results.attack_record import (
    AttackRecord,
    skipped_square_queries,
    uses_official_images,
)
from buttress.results.core import AccuracyEstimate
from buttress.results.evaluation import SuiteEntryResult
from buttress.results.robustbench import CORRUPTIONS_LEADERBOARD, leaderboard_dataset
from buttress.results.run_results import RunResults

STANDARD_ARGS: Mapping[str, Any] = {
    "version": AutoAttack.version,
    "attacks": [],
    "steps": AutoAttack.steps,
    "queries": AutoAttack.queries,
}


@dataclass(frozen=True)
class ModelCredit:
    """Name, authors and link of a model, given by the user."""

    name: str
    authors: str = ""
    link: str = ""

    @property
    def file_stem(self) -> str:
        """The name as RobustBench names files: letters, digits, ``-`` and ``_``."""
        return re.sub(r"[^A-Za-z0-9-]+", "_", self.name).strip("_-") or "model"


@dataclass(frozen=True)
class LeaderboardRecord:
    """One record, and why it has no robust accuracy, if so."""

    path: str  # inside the exported folder
    content: Mapping[str, Any]
    omitted_reason: str = ""


@dataclass(frozen=True)
class AutoAttackResult:
    """AutoAttack on a model: threat model, result, and why it is rejected."""

    dataset: str
    threat: str
    result: SuiteEntryResult | None = None  # only if nothing is wrong with it
    rejection: str = ""

    @property
    def norm(self) -> str:
        return self.threat.partition(":")[0]


def autoattack_records(
    run: RunResults, verified: VerifiedResults, credit: ModelCredit
) -> list[LeaderboardRecord]:
    """One record per dataset and norm of training or evaluation."""
    trained = run.training_threat
    by_leaderboard: dict[tuple[str, str], AutoAttackResult] = {}
    ordered = sorted(
        autoattack_results(run, verified), key=lambda t: (not t.result, t.threat != trained)
    )
    for trial in ordered:
        by_leaderboard.setdefault((leaderboard_dataset(trial.dataset), trial.norm), trial)
    return [
        build_leaderboard_record(run, verified, credit, trial) for trial in by_leaderboard.values()
    ]


def autoattack_results(run: RunResults, verified: VerifiedResults) -> list[AutoAttackResult]:
    results = []
    for evaluation in verified.evaluations:
        for result in evaluation.results.values():
            if normalize_name(result.definition.attack) != "autoattack":
                continue
            trouble = why_not_standard(result) or verified.why_incomplete(evaluation)
            usable = None if trouble else result
            results.append(
                AutoAttackResult(evaluation.dataset, result.definition.threat, usable, trouble)
            )
    threat = run.training_threat
    if threat and threat not in [t.threat for t in results]:
        command = f"buttress evaluate RUN --suite clean,autoattack:{threat}"
        results.append(
            AutoAttackResult(run.spec.dataset, threat, None, f"not evaluated; run {command}")
        )
    return results


def why_not_standard(result: SuiteEntryResult) -> str:
    """Why a record is not the standard AutoAttack; empty if it is."""
    args = result.metadata.get("args") or {}
    if any(STANDARD_ARGS.get(name) != value for name, value in args.items()):
        return f"not the standard version of AutoAttack ({result.definition.args})"
    if skipped_square_queries(result.metadata):
        return (
            "its Square attack skipped queries, which the standard version does not; run it again"
        )
    if result.metadata.get("mode"):
        return "it ran in worst-case mode after other attacks, so it is not AutoAttack alone"
    return ""


def build_leaderboard_record(
    run: RunResults, verified: VerifiedResults, credit: ModelCredit, trial: AutoAttackResult
) -> LeaderboardRecord:
    content, results_used = common_fields(run, verified, credit, trial.dataset)
    content["eps"] = trial.threat.partition(":")[2]
    notes = []
    if trial.result is not None:
        content["autoattack_acc"] = format_percentage(trial.result.estimate.accuracy)
        notes = [measurement_note(trial.result.estimate)]
        results_used = [*results_used, trial.result]
    content |= footnote_fields(run, verified, notes, results_used)
    path = f"model_info/{leaderboard_dataset(trial.dataset)}/{trial.norm}/{credit.file_stem}.json"
    measurement_name = f"AutoAttack at {trial.threat} on {public_dataset_name(trial.dataset)}"
    return LeaderboardRecord(
        path, content, "" if trial.result else f"{measurement_name}: {trial.rejection}"
    )


def common_fields(
    run: RunResults, verified: VerifiedResults, credit: ModelCredit, dataset: str
) -> tuple[dict[str, Any], list[SuiteEntryResult]]:
    """The fields that every file has, and the results behind them."""
    clean = verified.clean_result(dataset)
    content = {
        "link": credit.link,
        "name": credit.name,
        "authors": credit.authors,
        "additional_data": run.spec.recipe.extra_data is not None or "finetuned_from" in run.header,
        "number_forward_passes": 1,
        "dataset": leaderboard_dataset(dataset),
        "venue": "",
        "architecture": run.model,
        "eps": None,
        "clean_acc": "" if clean is None else format_percentage(clean.estimate.accuracy),
        "reported": "",
    }
    return content, [] if clean is None else [clean]


def footnote_fields(
    run: RunResults,
    verified: VerifiedResults,
    notes: Sequence[str],
    results: Sequence[SuiteEntryResult],
) -> dict[str, Any]:
    """Footnote: extra data, source of fine-tuning, warnings."""
    sentences = list(notes)
    if run.spec.recipe.extra_data is not None:
        sentences.append(
            f"Extra training data: {public_dataset_name(run.spec.recipe.extra_data.dataset)}."
        )
    if "finetuned_from" in run.header:
        sentences.append(
            f"Fine-tuned from {run.header['finetuned_from'].get('source', 'a model')}."
        )
    diagnosis = verified.diagnosis
    is_unreliable = not all(r.is_trustworthy for r in results) or (
        diagnosis is not None and not diagnosis.is_trustworthy
    )
    texts = [*(text for r in results for text in r.warnings), *verified.doctor_warnings]
    sentences += [f"Warning: {text}." for text in dict.fromkeys(texts)]
    return {"footnote": " ".join(sentences), "unreliable": is_unreliable}


def measurement_note(estimate: AccuracyEstimate) -> str:
    interval = " to ".join(map(format_percentage, estimate.interval))
    return f"Measured by Buttress {__version__} on {estimate.n} images, 95% interval {interval}."


def format_percentage(accuracy: float) -> str:
    return f"{100 * accuracy:.2f}"


NUM_CORRUPTIONS, NUM_SEVERITIES = 15, 5

CorruptionKey = tuple[str, int]  # name, severity


def corruption_records(
    run: RunResults, verified: VerifiedResults, credit: ModelCredit
) -> list[LeaderboardRecord]:
    """One record per dataset with evaluated corruptions."""
    records: dict[str, LeaderboardRecord] = {}
    for evaluation in verified.evaluations:
        if evaluation.corruptions is None:
            continue
        records_by_corruption = {
            (name, severity): record
            for name, by_severity in evaluation.corruptions.records.items()
            for severity, record in by_severity.items()
        }
        omitted_reason = why_not_comparable(records_by_corruption) or verified.why_incomplete(
            evaluation
        )
        content, results_used = common_fields(run, verified, credit, evaluation.dataset)
        if not omitted_reason:
            mean = sum(r.accuracy for r in records_by_corruption.values()) / len(
                records_by_corruption
            )
            content["corruptions_acc"] = format_percentage(mean)
        content |= footnote_fields(run, verified, [], [*results_used, *evaluation.results.values()])
        folder = f"model_info/{leaderboard_dataset(evaluation.dataset)}/{CORRUPTIONS_LEADERBOARD}"
        path = f"{folder}/{credit.file_stem}.json"
        reason = (
            f"corruptions of {public_dataset_name(evaluation.dataset)}: {omitted_reason}"
            if omitted_reason
            else ""
        )
        if path not in records or records[path].omitted_reason:
            records[path] = LeaderboardRecord(path, content, reason)
    return list(records.values())


def why_not_comparable(records: Mapping[CorruptionKey, AttackRecord]) -> str:
    """Why the mean over these records is not the leaderboard value; empty if it is."""
    types, levels = {name for name, _ in records}, {severity for _, severity in records}
    total = NUM_CORRUPTIONS * NUM_SEVERITIES
    if (len(types), len(levels), len(records)) != (NUM_CORRUPTIONS, NUM_SEVERITIES, total):
        return (
            f"the leaderboard value is the mean over {NUM_CORRUPTIONS} corruptions at "
            f"{NUM_SEVERITIES} severities, but {len(records)} of {total} were evaluated"
        )
    if not all(map(uses_official_images, records.values())):
        return "the corrupted images were generated here, not the official ones"
    return ""
