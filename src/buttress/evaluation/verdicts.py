"""One entry of a suite on all images: a verdict per image, and what it took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.attacks.call import How, check_images, create_attack, piece_length, run_attack
from buttress.attacks.freeze import frozen, gives_gradients, on_device_of
from buttress.attacks.prepare import PROBE, Prepared, prepare
from buttress.attacks.problem import Meter
from buttress.data import Batch, Dataset
from buttress.evaluation.corruption import corrupted_images
from buttress.evaluation.suite import Entry
from buttress.models import load_model
from buttress.models.checkpoint import tree_digest
from buttress.progress import Progress, Task, by_share
from buttress.records.evaluation import AttackRecord


@dataclass
class Network:
    """A model and the forms of it that attacks search in, made as attacks need them and kept."""

    model: nn.Module
    compile: bool = False
    prepared: Prepared | None = None

    @cached_property
    def weights(self) -> str:
        """A hash of the weights."""
        return tree_digest(self.model.state_dict())

    def prepare(self, data: Dataset) -> None:
        if self.prepared is None and gives_gradients(self.model):  # else nothing to rewrite
            x, _, _ = data.take(torch.arange(min(PROBE, len(data))))
            x = on_device_of(self.model, x)
            self.prepared = prepare(self.model, x, compile=self.compile)


@dataclass(frozen=True)
class Job:
    """One evaluation: a network, the images, and how to attack them."""

    network: Network
    data: Dataset
    suite: str
    batch_size: int
    seed: int
    origin: Mapping[str, Any]  # what identifies model and data in every record

    @property
    def model(self) -> nn.Module:
        return self.network.model


@dataclass(frozen=True)
class Cost:
    """What an attack took, and what is worth telling of how it went."""

    forward: Tensor  # (N,) passes
    backward: Tensor
    not_finite: int = 0  # images with a loss or gradient that was not finite
    parts: Sequence[tuple[str, int, int]] = ()  # of an ensemble: name, images, spared images


class Scores(NamedTuple):
    """What the model says of some images."""

    predictions: NDArray[np.int64]
    loss: NDArray[np.float32]
    distance: NDArray[np.float32]


def judge(
    job: Job, entry: Entry, left: NDArray[np.bool_] | None, progress: Progress
) -> AttackRecord:
    """The record of one entry. An attack sees the images in ``left``; what is not there is wrong.

    Clean and corrupted images are all scored, whatever is left.
    """
    started = time.perf_counter()
    task = progress.task(f"{job.suite}: {entry.name}", len(job.data))
    attacked = entry.threat is not None and left is not None
    try:
        if attacked:
            assert left is not None
            job.network.prepare(job.data)
            rows, cost = _attacked(job, entry, left, task)
        else:
            data = corrupted_images(job.data, **entry.args) if entry.is_corruption else job.data
            rows = [_score(job, b.x, b.y) for b in _advancing(job, data, task)]
            cost = Cost(torch.ones(len(job.data)), torch.zeros(len(job.data)))
    finally:
        task.close()
    predictions, loss, distance = (np.concatenate(c) for c in zip(*rows, strict=True))
    labels = job.data.labels.numpy()
    right = predictions == labels
    return AttackRecord(
        entry.name,
        ids=job.data.ids.numpy(),
        labels=labels,
        predictions=predictions,
        correct=right & left if attacked else right,
        loss=loss,
        distance=distance,
        meta=_taken(job, cost, time.perf_counter() - started),
    )


def _taken(job: Job, cost: Cost, seconds: float) -> dict[str, Any]:
    ready = job.network.prepared
    return {
        "seconds": round(seconds, 3),
        "forward": round(float(cost.forward.double().mean()), 3),
        "backward": round(float(cost.backward.double().mean()), 3),
        "not_finite": cost.not_finite,
        "parts": [list(part) for part in cost.parts],
        "prepared": [] if ready is None else list(ready.notes),
    }


def _advancing(job: Job, data: Dataset, task: Task) -> Iterator[Batch]:
    for batch in data.batches(job.batch_size):
        yield batch
        task.advance(len(batch.x))


def _attacked(
    job: Job, entry: Entry, left: NDArray[np.bool_], task: Task
) -> tuple[list[Scores], Cost]:
    """Attacks the images that are right so far; the others are wrong already.

    Images come in pieces that bound the memory; inside a piece the attack keeps its batch full.
    """
    chosen, threat = create_attack(entry.attack, **with_models(entry.args)), entry.threat
    assert threat is not None
    right = torch.from_numpy(left)
    rows, costs, meters, start = [], [], [], 0
    for x, y, ids in job.data.batches(piece_length(job.data.shape, job.batch_size)):
        here = right[start : start + len(x)]
        x_adv, passes = x.clone(), torch.zeros(2, len(x), dtype=torch.int64)
        if here.any():
            how = How(job.seed, job.batch_size, True, by_share(task, len(x)), job.network.prepared)
            out = run_attack(chosen, job.model, x[here], y[here], threat, ids=ids[here], how=how)
            x_adv[here] = out.x_adv.to(x)
            passes[:, here] = torch.stack([out.meter.forward, out.meter.backward]).cpu()
            meters.append((out.names, out.meter))
        distance = threat.distance(x, x_adv).float().numpy()
        for part in torch.arange(len(x)).split(job.batch_size):
            scores = _score(job, x_adv[part], y[part], chosen.passes)
            rows.append(scores._replace(distance=distance[part.numpy()]))
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


def with_models(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an attack, with the networks that make its examples read from their runs."""
    sources = args.get("sources", ())
    if not any(isinstance(source, str) for source in sources):
        return dict(args)
    return {**args, "sources": [load_model(s) if isinstance(s, str) else s for s in sources]}


def _score(job: Job, x: Tensor, y: Tensor, passes: int = 1) -> Scores:
    """Predictions and cross-entropy of the model itself: this alone decides the verdict.

    For randomised models it is the mean of several passes.
    """
    check_images(x)
    x = on_device_of(job.model, x)
    with frozen(job.model), torch.no_grad():
        logits = torch.stack([job.model(x) for _ in range(passes)]).mean(0)
    loss = F.cross_entropy(logits.float(), y.to(logits.device), reduction="none")
    zeros = np.zeros(len(x), dtype=np.float32)
    return Scores(logits.argmax(1).cpu().numpy(), loss.cpu().float().numpy(), zeros)
