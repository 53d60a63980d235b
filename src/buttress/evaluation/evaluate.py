"""Attacks a model with everything in a suite and keeps a verdict per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from buttress.attacks.core import ATTACKS, create_attack
from buttress.attacks.problem import Problem
from buttress.data import Dataset
from buttress.engine.run import check_differentiable, check_image_batch, check_model_output
from buttress.errors import CorruptFileError, UserError
from buttress.evaluation.doctor.core import (
    PROBE_IMAGES,
    ModelUnderTest,
    add_record_findings,
    run_checks,
    with_findings,
)
from buttress.evaluation.run_entry import (
    EvaluatedModel,
    EvaluationJob,
    load_source_models,
    run_suite_entry,
)
from buttress.evaluation.suite import (
    SuiteEntry,
    SuiteSpec,
    corruption_source,
    load_suite,
    resolve_suite,
)
from buttress.models.eval_mode import eval_mode, is_differentiable
from buttress.results.attack_record import AttackRecord, read_attack_record, write_attack_record
from buttress.results.diagnosis import Finding, warning_texts
from buttress.results.evaluation import Evaluation, load_evaluation, record_warnings
from buttress.results.run import changed_keys, command_line, provenance
from buttress.system.progress import Progress, SilentProgress
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import Threat

__all__ = ["evaluate", "load_evaluation", "record_warnings"]


@dataclass(frozen=True)
class EvaluationOptions:
    """How an evaluation is run; but for the seed, it changes no verdict."""

    batch_size: int = 256
    seed: int = 0
    out: Path | None = None
    progress: Progress = SilentProgress()  # noqa: RUF009 - it has no state


def evaluate(  # noqa: PLR0913 - the public call
    model: nn.Module,
    data: Dataset,
    suite: str | Path | Sequence[str] | SuiteSpec,
    *,
    batch_size: int = 256,
    seed: int = 0,
    out: Path | None = None,
    compile: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Accuracy under each attack of a suite, and the sample-wise worst case.

    Args:
        model: any network from [0, 1] images to logits.
        data: the images to attack; all of them count.
        suite: a suite's name, a YAML file, or a list like ``["clean", "pgd-linf"]``.
        batch_size: changes speed and memory, not verdicts.
        seed: of the attacks' random starts.
        out: a folder for the records; attacks whose record is there and fits are not done again.
        compile: try torch.compile too; it takes a minute first, and a C++ compiler on a CPU.
        progress: where to show progress.

    Attacks search in the fastest form of the network that passes its checks; what they find counts
    only if the network itself confirms it.
    """
    options = EvaluationOptions(batch_size, seed, out, progress or SilentProgress())
    return evaluate_model(EvaluatedModel(model, compile), data, load_suite(suite), options)


def evaluate_model(
    network: EvaluatedModel, data: Dataset, spec: SuiteSpec, options: EvaluationOptions
) -> Evaluation:
    """Like `evaluate`, for a network that may be prepared already."""
    entries = resolve_suite(spec, data.budgets, data.name)
    if len(data) == 0 or options.batch_size < 1:
        raise UserError(
            f"need images and `batch_size >= 1`, got {len(data)} and {options.batch_size}"
        )
    subject = _check_first_images(network.model, data, entries)
    model_findings = run_checks(subject, "look")
    warnings = [*getattr(network.model, "warnings", ()), *warning_texts(model_findings)]
    job = EvaluationJob(
        network,
        data,
        spec.name,
        options.batch_size,
        options.seed,
        _model_and_data_identity(network, data, spec, options),
    )
    shared_metadata = {
        "classes": list(data.classes),
        "warnings": warnings,
        "suite_attacks": [e.name for e in entries],
        "suite_corruptions": [e.name for e in entries if e.is_corruption],
    }
    records: dict[str, AttackRecord] = {}
    for position, entry in enumerate(entries):
        previous = _previous_records(spec, records)
        identity = _record_identity(job, entry) | {"position": position}
        if spec.mode == "worst_case" and not entry.is_corruption:
            identity["after"] = list(previous)  # what was broken before decides who is attacked
        path = None if options.out is None else options.out / f"{entry.name}.parquet"
        record = None if path is None else _read_cached_record(path, identity, options.progress)
        if record is None:
            flags = [r.correct for r in previous.values()]
            to_attack = np.logical_and.reduce(flags) if flags else None
            record = run_suite_entry(job, entry, to_attack, options.progress)
            meta = {**identity, **record.meta, **shared_metadata, **provenance(command_line())}
            entry_findings = [*model_findings, *_threat_findings(subject, entry)]
            record = add_record_findings(
                with_findings(replace(record, meta=meta), entry_findings), list(records.values())
            )
            if path is not None:
                write_attack_record(path, record)
        records[entry.name] = record
    return Evaluation(spec.name, records, tuple(warnings) + record_warnings(records))


def _previous_records(
    spec: SuiteSpec, records: Mapping[str, AttackRecord]
) -> dict[str, AttackRecord]:
    """The records whose broken images are left alone: clean, or all that count so far."""
    counted = {n: r for n, r in records.items() if r.counts}
    return counted if spec.mode == "worst_case" else dict([*counted.items()][:1])


def _model_and_data_identity(
    network: EvaluatedModel, data: Dataset, spec: SuiteSpec, ways: EvaluationOptions
) -> dict[str, Any]:
    origin = {
        "weights": network.weights_digest,
        "data": data.fingerprint(),
        "dataset": data.name,
        "split": data.split,
        "seed": ways.seed,
    }
    return origin if spec.mode == "table" else {**origin, "mode": spec.mode}


def _check_first_images(
    model: nn.Module, data: Dataset, entries: Sequence[SuiteEntry]
) -> ModelUnderTest:
    """The first images and the model, refused if they cannot be attacked."""
    first_images = data.select(range(min(PROBE_IMAGES, len(data))))
    attacks = [e for e in entries if e.threat is not None]
    attack_fns = [create_attack(e.attack, **load_source_models(e.args)) for e in attacks]
    threat = attacks[0].threat if attacks else None
    passes = min((attack.eot_samples for attack in attack_fns), default=1)
    subject = ModelUnderTest(
        model, first_images, threat or Threat("Linf", data.budgets["Linf"]), averaged_passes=passes
    )
    check_image_batch(subject.x)
    x, y = subject.x[:1], subject.y[:1]
    with eval_mode(model):
        clean = check_model_output(model, x, subject.y, data.num_classes)
    if not is_differentiable(model):
        for entry, attack in zip(attacks, attack_fns, strict=True):
            assert entry.threat is not None
            streams = SampleRNG(0, entry.name, torch.arange(1))
            check_differentiable(attack, Problem(model, x, y, entry.threat, streams, clean))
    return subject


def _threat_findings(subject: ModelUnderTest, entry: SuiteEntry) -> list[Finding]:
    """What speaks against the threat of an entry."""
    return [] if entry.threat is None else run_checks(replace(subject, threat=entry.threat), "ball")


def _record_identity(job: EvaluationJob, entry: SuiteEntry) -> dict[str, Any]:
    """What must be equal for an old record to stand for a new one."""
    threat = "" if entry.threat is None else str(entry.threat)
    definition: dict[str, Any] = {
        "attack": entry.attack,
        "args": dict(entry.args),
        "threat": threat,
    }
    if entry.threat is not None:
        definition |= ATTACKS.get(entry.attack).record_identity
    if entry.is_corruption:
        definition["counts"] = entry.in_worst_case
        definition["images"] = corruption_source(job.data, **entry.args)
    return {**job.identity, **definition, "suite": job.suite}


def _read_cached_record(
    path: Path, identity: Mapping[str, Any], progress: Progress
) -> AttackRecord | None:
    """The record at ``path`` if it is whole and of this very evaluation."""
    try:
        record = read_attack_record(path)
    except FileNotFoundError:
        return None
    except CorruptFileError as error:
        progress.log(f"{error}; doing it again")
        return None
    stored = {k: record.meta.get(k) for k in identity}
    if changed := changed_keys(stored, dict(identity)):
        progress.log(f"{path} was made with other settings ({', '.join(changed)}); doing it again")
        return None
    return record


def attack_correct_images(
    job: EvaluationJob, entry: SuiteEntry, previous: AttackRecord | None, progress: Progress
) -> AttackRecord:
    """One attack on the images that ``previous`` has right, with what it was in its record."""
    record = run_suite_entry(job, entry, None if previous is None else previous.correct, progress)
    return replace(record, meta={**_record_identity(job, entry), **record.meta})
