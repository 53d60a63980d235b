"""Attacks a model with every attack of a suite and keeps a verdict per image."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.attacks.call import (
    How,
    check_images,
    check_logits,
    create_attack,
    piece_length,
    run_attack,
)
from buttress.attacks.freeze import frozen, on_device_of
from buttress.attacks.loop import OnStep
from buttress.attacks.prepare import PROBE, Prepared, prepare
from buttress.attacks.problem import Meter
from buttress.data import Batch, Dataset
from buttress.errors import CorruptFile, UserError
from buttress.evaluation.inspect import inspect_model
from buttress.evaluation.suite import Entry, SuiteSpec, load_suite, resolve_suite
from buttress.models import load_model
from buttress.models.checkpoint import tree_digest
from buttress.progress import Progress, Silent, Task
from buttress.records.evaluation import AttackRecord, Evaluation, read_record, write_record
from buttress.records.run import command_line, differences, provenance


@dataclass(frozen=True)
class Job:
    """One evaluation: a model, the images, and how to attack them."""

    model: nn.Module
    data: Dataset
    suite: str
    batch_size: int
    seed: int
    origin: Mapping[str, Any]  # what identifies model and data in every record
    prepared: Prepared | None = None


@dataclass(frozen=True)
class Cost:
    """What an attack took, and what is worth telling of how it went."""

    forward: Tensor  # (N,) passes
    backward: Tensor
    not_finite: int = 0  # images with a loss or gradient that was not finite
    parts: Sequence[tuple[str, int, int]] = ()  # of an ensemble: name, images, spared images


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
    progress = progress or Silent()
    spec = load_suite(suite)
    entries = resolve_suite(spec, data.budgets)
    if len(data) == 0 or batch_size < 1:
        raise UserError(f"need images and `batch_size >= 1`, got {len(data)} and {batch_size}")
    warnings = _first_look(model, data)
    origin = {
        "weights": tree_digest(model.state_dict()),
        "data": data.fingerprint(),
        "dataset": data.name,
        "split": data.split,
        "seed": seed,
    }
    if spec.mode != "table":
        origin["mode"] = spec.mode
    job = Job(model, data, spec.name, batch_size, seed, origin)
    records: dict[str, AttackRecord] = {}
    for position, entry in enumerate(entries):
        path = None if out is None else out / f"{entry.name}.parquet"
        made = _identity(job, entry) | {"position": position}
        if spec.mode == "worst_case":  # what was broken before decides who is attacked
            made["after"] = list(records)
        record = None if path is None else _finished(path, made, progress)
        if record is None:
            before = (
                list(records.values()) if spec.mode == "worst_case" else [*records.values()][:1]
            )
            if job.prepared is None and entry.threat is not None:  # not for what is done already
                job = replace(job, prepared=_prepared(model, data, compile))
            record = _attack(job, entry, _survivors(before), progress)
            meta = {**made, **record.meta, "classes": list(data.classes), "warnings": warnings}
            meta["suite_attacks"] = [e.name for e in entries]
            record = replace(record, meta={**meta, **provenance(command_line())})
            if path is not None:
                write_record(path, record)
        records[entry.name] = record
    return Evaluation(spec.name, records, tuple(warnings) + notes_of(records))


def _prepared(model: nn.Module, data: Dataset, compile: bool) -> Prepared:
    x, _, _ = data.take(torch.arange(min(PROBE, len(data))))
    return prepare(model, on_device_of(model, x), compile=compile)


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
    what = {"attack": entry.attack, "args": dict(entry.args), "threat": threat}
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


def _survivors(before: Sequence[AttackRecord]) -> AttackRecord | None:
    """The last record, right only where all are: what is not right here is not attacked again."""
    if not before:
        return None
    return replace(before[-1], correct=np.logical_and.reduce([r.correct for r in before]))


def _attack(job: Job, entry: Entry, left: AttackRecord | None, progress: Progress) -> AttackRecord:
    started = time.perf_counter()
    task = progress.task(f"{job.suite}: {entry.name}", len(job.data))
    try:
        if entry.threat is None or left is None:
            rows = [_score(job, b.x, b.y, b.x) for b in _advancing(job, task)]
            cost = Cost(torch.ones(len(job.data)), torch.zeros(len(job.data)))
        else:
            rows, cost = _attacked(job, entry, left, task)
    finally:
        task.close()
    columns = [np.concatenate(c) for c in zip(*rows, strict=True)]
    predictions, loss, distance = columns
    labels = job.data.labels.numpy()
    meta = {
        "seconds": round(time.perf_counter() - started, 3),
        "forward": round(float(cost.forward.double().mean()), 3),
        "backward": round(float(cost.backward.double().mean()), 3),
        "not_finite": cost.not_finite,
        "parts": [list(part) for part in cost.parts],
        "prepared": [] if job.prepared is None else list(job.prepared.notes),
    }
    return AttackRecord(
        entry.name,
        ids=job.data.ids.numpy(),
        labels=labels,
        predictions=predictions,
        correct=predictions == labels if left is None else (predictions == labels) & left.correct,
        loss=loss,
        distance=distance,
        meta=meta,
    )


def _advancing(job: Job, task: Task) -> Iterator[Batch]:
    for batch in job.data.batches(job.batch_size):
        yield batch
        task.advance(len(batch.x))


def _attacked(
    job: Job, entry: Entry, left: AttackRecord, task: Task
) -> tuple[list[tuple[Any, Any, Any]], Cost]:
    """Attacks the images that are right so far; the others are wrong already.

    Images come in pieces that bound the memory; inside a piece the attack keeps its batch full.
    """
    chosen, threat = create_attack(entry.attack, **_with_models(entry.args)), entry.threat
    assert threat is not None
    right = torch.from_numpy(left.correct)
    rows, costs, meters, start = [], [], [], 0
    for x, y, ids in job.data.batches(piece_length(job.data.shape, job.batch_size)):
        here = right[start : start + len(x)]
        x_adv, passes = x.clone(), torch.zeros(2, len(x), dtype=torch.int64)
        if here.any():
            how = How(job.seed, job.batch_size, True, _advance(task, len(x)), job.prepared)
            out = run_attack(chosen, job.model, x[here], y[here], threat, ids=ids[here], how=how)
            x_adv[here] = out.x_adv.to(x)
            passes[:, here] = torch.stack([out.meter.forward, out.meter.backward]).cpu()
            meters.append((out.names, out.meter))
        distance = threat.distance(x, x_adv).float().numpy()
        for part in torch.arange(len(x)).split(job.batch_size):
            predictions, loss, _ = _score(job, x_adv[part], y[part], x[part], chosen.passes)
            rows.append((predictions, loss, distance[part.numpy()]))
        costs.append(passes + torch.tensor([[chosen.passes], [0]]))
        start += len(x)
    forward, backward = torch.cat(costs, dim=1)
    not_finite = sum(int(meter.broken_numerics.sum()) for _, meter in meters)
    return rows, Cost(forward, backward, not_finite, _parts(meters))


def _parts(meters: Sequence[tuple[tuple[str, ...], Meter]]) -> list[tuple[str, int, int]]:
    """For an ensemble: each part, the images it attacked, and those it left out as hopeless."""
    names = meters[0][0] if meters else ()
    return [
        (
            name,
            sum(int((m.parts >> k & 1).sum()) for _, m in meters),
            sum(int((m.spared >> k & 1).sum()) for _, m in meters),
        )
        for k, name in enumerate(names)
    ]


def _with_models(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an attack, with the networks that make its examples read from their runs."""
    sources = args.get("sources", ())
    if not any(isinstance(source, str) for source in sources):
        return dict(args)
    return {**args, "sources": [load_model(s) if isinstance(s, str) else s for s in sources]}


def _advance(task: Task, images: int) -> OnStep:
    """Progress of one piece in images, from the share of its work that is done."""
    done = 0.0

    def told(share: float) -> None:
        nonlocal done
        task.advance(share * images - done)
        done = share * images

    return told


def _score(job: Job, x_adv: Tensor, y: Tensor, x: Tensor, passes: int = 1) -> tuple[Any, Any, Any]:
    """Predictions and cross-entropy of the model itself: this alone decides the verdict.

    For randomised models it is the mean of several passes.
    """
    check_images(x)
    x_adv = on_device_of(job.model, x_adv)
    with frozen(job.model), torch.no_grad():
        logits = torch.stack([job.model(x_adv) for _ in range(passes)]).mean(0)
    loss = F.cross_entropy(logits.float(), y.to(logits.device), reduction="none")
    zeros = np.zeros(len(x), dtype=np.float32)
    return logits.argmax(1).cpu().numpy(), loss.cpu().float().numpy(), zeros


def notes_of(records: Mapping[str, AttackRecord]) -> tuple[str, ...]:
    """What a reader must know of how records were made."""
    found = [
        f"{n}: a loss or gradient was not finite for {r.meta['not_finite']} images; they are "
        "counted as survivors unless another point broke them"
        for n, r in records.items()
        if r.meta.get("not_finite", 0)
    ]
    found += [
        f"{n}: the outputs were not numbers for {int(np.isnan(r.loss).sum())} images"
        for n, r in records.items()
        if np.isnan(r.loss).any()
    ]
    last = [*records.values()][-1:]
    if last and last[0].meta.get("mode") == "worst_case":
        found.append(
            "worst case only: each attack saw what the attacks before it left, so its accuracy is "
            "that of all attacks so far"
        )
    if last and len(last[0]) < last[0].meta.get("drawn_from", 0):
        found.append(
            f"stopped early: {len(last[0])} images drawn at random from "
            f"{last[0].meta['drawn_from']}, until the 95% interval of the worst case was narrower "
            f"than {100 * last[0].meta['until']:g} points"
        )
    return tuple(found)
