"""Attacks a model with everything in a suite and keeps a verdict per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from buttress.attacks.call import check_gradients, check_images, check_logits, create_attack
from buttress.attacks.freeze import frozen, gives_gradients
from buttress.attacks.problem import Problem
from buttress.data import Dataset
from buttress.errors import CorruptFile, UserError
from buttress.evaluation.corruption import images_used
from buttress.evaluation.doctor.core import LOOK, Patient
from buttress.evaluation.doctor.examine import examine, told, with_findings
from buttress.evaluation.suite import Entry, SuiteSpec, load_suite, resolve_suite
from buttress.evaluation.verdicts import Job, Network, judge, with_models
from buttress.progress import Progress, Silent
from buttress.records.diagnosis import Finding, texts
from buttress.records.evaluation import (
    AttackRecord,
    Evaluation,
    load_evaluation,
    notes_of,
    read_record,
    write_record,
)
from buttress.records.run import command_line, differences, provenance
from buttress.streams import Streams
from buttress.threat import Threat

__all__ = ["evaluate", "load_evaluation", "notes_of"]


@dataclass(frozen=True)
class Ways:
    """How an evaluation is run; but for the seed, it changes no verdict."""

    batch_size: int = 256
    seed: int = 0
    out: Path | None = None
    progress: Progress = Silent()  # noqa: RUF009 - it has no state


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
    ways = Ways(batch_size, seed, out, progress or Silent())
    return evaluate_network(Network(model, compile), data, load_suite(suite), ways)


def evaluate_network(network: Network, data: Dataset, spec: SuiteSpec, ways: Ways) -> Evaluation:
    """Like `evaluate`, for a network that may be prepared already."""
    entries = resolve_suite(spec, data.budgets, data.name)
    if len(data) == 0 or ways.batch_size < 1:
        raise UserError(f"need images and `batch_size >= 1`, got {len(data)} and {ways.batch_size}")
    patient = _first_look(network.model, data, entries)
    looked = examine(patient, "look")
    warnings = [*getattr(network.model, "caveats", ()), *texts(looked)]
    job = Job(
        network, data, spec.name, ways.batch_size, ways.seed, _origin(network, data, spec, ways)
    )
    everywhere = {
        "classes": list(data.classes),
        "warnings": warnings,
        "suite_attacks": [e.name for e in entries],
        "suite_corruptions": [e.name for e in entries if e.is_corruption],
    }
    records: dict[str, AttackRecord] = {}
    for position, entry in enumerate(entries):
        before = _before(spec, records)
        made = _identity(job, entry) | {"position": position}
        if spec.mode == "worst_case" and not entry.is_corruption:
            made["after"] = list(before)  # what was broken before decides who is attacked
        path = None if ways.out is None else ways.out / f"{entry.name}.parquet"
        record = None if path is None else _finished(path, made, ways.progress)
        if record is None:
            flags = [r.correct for r in before.values()]
            left = np.logical_and.reduce(flags) if flags else None
            record = judge(job, entry, left, ways.progress)
            meta = {**made, **record.meta, **everywhere, **provenance(command_line())}
            found = [*looked, *_of_ball(patient, entry)]
            record = told(with_findings(replace(record, meta=meta), found), list(records.values()))
            if path is not None:
                write_record(path, record)
        records[entry.name] = record
    return Evaluation(spec.name, records, tuple(warnings) + notes_of(records))


def _before(spec: SuiteSpec, records: Mapping[str, AttackRecord]) -> dict[str, AttackRecord]:
    """The records whose broken images are left alone: clean, or all that count so far."""
    found = {n: r for n, r in records.items() if r.counts}
    return found if spec.mode == "worst_case" else dict([*found.items()][:1])


def _origin(network: Network, data: Dataset, spec: SuiteSpec, ways: Ways) -> dict[str, Any]:
    origin = {
        "weights": network.weights,
        "data": data.fingerprint(),
        "dataset": data.name,
        "split": data.split,
        "seed": ways.seed,
    }
    return origin if spec.mode == "table" else {**origin, "mode": spec.mode}


def _first_look(model: nn.Module, data: Dataset, entries: Sequence[Entry]) -> Patient:
    """The first images and the model, refused if they cannot be attacked."""
    few = data.select(range(min(LOOK, len(data))))
    attacks = [e for e in entries if e.threat is not None]
    made = [create_attack(e.attack, **with_models(e.args)) for e in attacks]
    threat = attacks[0].threat if attacks else None
    passes = min((attack.passes for attack in made), default=1)
    patient = Patient(model, few, threat or Threat("Linf", data.budgets["Linf"]), passes=passes)
    check_images(patient.x)
    x, y = patient.x[:1], patient.y[:1]
    with frozen(model):
        clean = check_logits(model, x, patient.y, data.num_classes)
    if not gives_gradients(model):
        for entry, attack in zip(attacks, made, strict=True):
            assert entry.threat is not None
            streams = Streams(0, entry.name, torch.arange(1))
            check_gradients(attack, Problem(model, x, y, entry.threat, streams, clean))
    return patient


def _of_ball(patient: Patient, entry: Entry) -> list[Finding]:
    """What speaks against the threat of an entry."""
    return [] if entry.threat is None else examine(replace(patient, threat=entry.threat), "ball")


def _identity(job: Job, entry: Entry) -> dict[str, Any]:
    """What must be equal for an old record to stand for a new one."""
    threat = "" if entry.threat is None else str(entry.threat)
    what: dict[str, Any] = {"attack": entry.attack, "args": dict(entry.args), "threat": threat}
    if entry.is_corruption:
        what["counts"] = entry.counts
        what["images"] = images_used(job.data, **entry.args)
    return {**job.origin, **what, "suite": job.suite}


def _finished(path: Path, made: Mapping[str, Any], progress: Progress) -> AttackRecord | None:
    """The record at ``path`` if it is whole and of this very evaluation."""
    try:
        record = read_record(path)
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        progress.log(f"{error}; doing it again")
        return None
    old = {k: record.meta.get(k) for k in made}
    if changed := differences(old, dict(made)):
        progress.log(f"{path} was made with other settings ({', '.join(changed)}); doing it again")
        return None
    return record


def attack_left(
    job: Job, entry: Entry, left: AttackRecord | None, progress: Progress
) -> AttackRecord:
    """One attack on the images that ``left`` has right, with what it was in its record."""
    record = judge(job, entry, None if left is None else left.correct, progress)
    return replace(record, meta={**_identity(job, entry), **record.meta})
