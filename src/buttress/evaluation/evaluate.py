"""Attacks a model with everything in a suite and keeps a verdict per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from buttress.attacks.call import check_images, check_logits
from buttress.attacks.freeze import frozen, on_device_of
from buttress.data import Dataset
from buttress.errors import CorruptFile, UserError
from buttress.evaluation.corruption import images_used
from buttress.evaluation.inspect import inspect_model
from buttress.evaluation.suite import Entry, SuiteSpec, load_suite, resolve_suite
from buttress.evaluation.verdicts import Job, Network, judge
from buttress.progress import Progress, Silent
from buttress.records.evaluation import AttackRecord, Evaluation, read_record, write_record
from buttress.records.run import command_line, differences, provenance


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
    warnings = _first_look(network.model, data)
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
            record = replace(record, meta=meta)
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


def load_evaluation(folder: Path) -> Evaluation:
    """The evaluation that was written to a folder."""
    found = [read_record(p) for p in sorted(folder.glob("*.parquet"))]
    found.sort(key=lambda r: r.meta.get("position", 0))
    warnings = tuple(found[0].meta.get("warnings", ())) if found else ()
    records = {r.name: r for r in found}
    return Evaluation(folder.name, records, warnings + notes_of(records))


def _first_look(model: nn.Module, data: Dataset) -> list[str]:
    x, y, _ = data.take(torch.arange(min(64, len(data))))
    x = on_device_of(model, x)
    y = y.to(x.device)
    check_images(x)
    with frozen(model):
        check_logits(model, x[:1], y, data.num_classes)
    return [*getattr(model, "caveats", ()), *inspect_model(model, x, y)]


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


def notes_of(records: Mapping[str, AttackRecord]) -> tuple[str, ...]:
    """What a reader must know of how records were made."""
    found = [
        f"{n}: a loss or gradient was not finite for {r.meta['not_finite']} images; they are "
        "counted as survivors unless another point broke them"
        for n, r in records.items()
        if r.meta.get("not_finite", 0)
    ]
    last = [*records.values()][-1:]
    if last and last[0].meta.get("mode") == "worst_case":
        found.append(
            "worst case only: each attack saw what the attacks before it left, so its accuracy is "
            "that of all attacks so far"
            + (
                ", counted corruptions included"
                if any(r.is_corruption and r.counts for r in records.values())
                else ""
            )
        )
    if last and len(last[0]) < last[0].meta.get("drawn_from", 0):
        found.append(
            f"stopped early: {len(last[0])} images drawn at random from "
            f"{last[0].meta['drawn_from']}, until the 95% interval of the worst case was narrower "
            f"than {100 * last[0].meta['until']:g} points"
        )
    return tuple(found)
