"""Run one entry of a suite on all images: per-sample results and their cost."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.attacks.core import Attack, create_attack
from buttress.attacks.problem import PassCounter
from buttress.data import Batch, Dataset
from buttress.engine.checks import check_image_batch
from buttress.engine.cost import attack_passes
from buttress.engine.fast_model import MAX_PROBE_IMAGES, FastModel
from buttress.engine.options import AttackOptions
from buttress.engine.run import chunk_size, run_attack
from buttress.evaluation.doctor.images import find_training_images
from buttress.evaluation.suite import SuiteEntry, load_corrupted_images
from buttress.models import load_model
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode, is_differentiable, model_device, to_model_device
from buttress.models.loading.checkpoint import content_digest
from buttress.results.attack_record import AttackRecord
from buttress.results.training_images import TrainingImages
from buttress.system.cpu import release_freed_memory
from buttress.system.memory import peak_memory_mb
from buttress.system.progress import Progress, ProgressTask, fraction_callback
from buttress.system.rng import isolated_rng
from buttress.threats.core import Threat


@dataclass
class EvaluatedModel:
    """A model and its inference-optimized form, which is built on demand and cached."""

    model: nn.Module
    compile: bool = False
    fast_model: FastModel | None = None
    _training_images: dict[str, TrainingImages | None] = field(default_factory=dict)

    def training_images(self, data: Dataset) -> TrainingImages | None:
        """What the model was trained on, if it is known; for images of this dataset."""
        if data.name not in self._training_images:
            self._training_images[data.name] = find_training_images(self.model, data)
        return self._training_images[data.name]

    @cached_property
    def weights_digest(self) -> str:
        """A hash of the weights."""
        return content_digest(self.model.state_dict())

    def build_fast_model(self, data: Dataset, images: float, passes: float) -> None:
        """For this many images and passes of each; see `FastModel.select`."""
        if self.fast_model is None and is_differentiable(self.model):
            x, _, _ = data.take(torch.arange(min(MAX_PROBE_IMAGES, len(data))))
            x = to_model_device(self.model, x)
            self.fast_model = FastModel.select(
                self.model, x, images=images, passes=passes, compile=self.compile
            )


@dataclass(frozen=True)
class EvaluationJob:
    """One evaluation: a model, the images, and how to attack them."""

    evaluated: EvaluatedModel
    data: Dataset
    suite: str
    batch_size: int
    seed: int
    identity: Mapping[str, Any]  # what identifies model and data in every record
    draws: int = 1  # of the randomness of the model, over which it is scored
    # Of the whole evaluation, of which this may be a part, and the passes that are predicted for
    # all its attacks on one image, in forward passes; infinite: not known, but many.
    total_images: float = math.inf
    predicted_passes: float = math.inf

    @property
    def model(self) -> nn.Module:
        return self.evaluated.model


def entry_passes(entry: SuiteEntry, num_classes: int, draws: int = 1) -> PassCount:
    """Expected passes of an image that stays robust, as records count them."""
    if entry.threat is None:
        return PassCount(draws)
    attack = create_attack(entry.attack, **entry.args)
    passes = attack_passes(attack, entry.threat, num_classes, expected=True)
    return passes + PassCount(draws)  # the predictions of the model itself


@dataclass
class EntryCost:
    """Cost of an attack, numerical faults, and the stages of an ensemble."""

    forward_passes: Tensor  # (N,) passes
    backward_passes: Tensor
    nonfinite_images: int = 0  # images with a loss or gradient that was not finite
    stages: dict[tuple[int, str], list[int]] = field(default_factory=dict)  # images, and skipped

    @classmethod
    def allocate(cls, images: int) -> EntryCost:
        return cls(*torch.zeros(2, images, dtype=torch.int64))

    def add_chunk(self, start: int, mask: Tensor, outcome: ChunkOutcome) -> None:
        """Add what the attack on a chunk took, whose first image is ``start``."""
        if (counter := outcome.counter) is None:
            return
        chunk = slice(start, start + len(mask))
        self.forward_passes[chunk][mask] = counter.forward.cpu()
        self.backward_passes[chunk][mask] = counter.backward.cpu()
        self.nonfinite_images += int(counter.non_finite.sum())
        for k, name in enumerate(outcome.stage_names):
            counts = self.stages.setdefault((k, name), [0, 0])
            for i, stages in enumerate((counter.stages_run, counter.stages_skipped)):
                counts[i] += int((stages >> k & 1).sum())


class SamplePredictions(NamedTuple):
    """Predictions, loss and perturbation size of some images."""

    predictions: NDArray[np.int64]  # of most draws
    is_correct: NDArray[np.bool_]  # (N, draws); not where a logit is not finite
    is_finite: NDArray[np.bool_]  # all logits of all draws are
    loss: NDArray[np.float32]
    perturbation_size: NDArray[np.float32]

    @classmethod
    def allocate(cls, images: int, draws: int) -> SamplePredictions:
        """Room for all images: arrays that are kept between batches scatter the heap."""
        return cls(
            np.zeros(images, np.int64), np.zeros((images, draws), np.bool_),
            np.zeros(images, np.bool_), np.zeros(images, np.float32), np.zeros(images, np.float32),
        )  # fmt: skip

    def write(self, start: int, batch: SamplePredictions) -> int:
        """Write the predictions of a batch that begins at ``start``; return where it ends."""
        end = start + len(batch.loss)
        for name in self._fields:
            getattr(self, name)[start:end] = getattr(batch, name)
        return end


def run_suite_entry(
    job: EvaluationJob, entry: SuiteEntry, to_attack: NDArray[np.bool_] | None, progress: Progress
) -> AttackRecord:
    """Run one entry and return its record.

    An attack runs on the images in ``to_attack``; all others count as misclassified. Clean and
    corrupted images are all scored.
    """
    started = time.perf_counter()
    task = progress.add_task(f"{job.suite}: {entry.name}", len(job.data))
    is_attack = entry.threat is not None and to_attack is not None
    try:
        with isolated_rng(model_device(job.model), job.seed, entry.name, "draws"):
            if is_attack:
                assert to_attack is not None
                job.evaluated.build_fast_model(job.data, job.total_images, job.predicted_passes)
                scored, cost = _attack_images(job, entry, to_attack, task)
            else:
                scored, cost = _predict_images(job, entry, task)
    finally:
        task.close()
    is_correct = scored.is_correct
    if is_attack:
        assert to_attack is not None
        is_correct = is_correct & to_attack[:, None]
    return AttackRecord(
        entry.name,
        ids=job.data.ids.numpy(),
        labels=job.data.labels.numpy(),
        predictions=scored.predictions,
        correct=np.asarray(is_correct.all(1)),
        loss=scored.loss,
        perturbation_size=scored.perturbation_size,
        metadata={
            **_cost_metadata(job, cost, time.perf_counter() - started),
            "nonfinite_outputs": int((~scored.is_finite).sum()),
            **({"draw_accuracies": is_correct.mean(0).tolist()} if job.draws > 1 else {}),
        },
        correct_draws=is_correct.sum(1) if job.draws > 1 else None,
    )


def _predict_images(
    job: EvaluationJob, entry: SuiteEntry, task: ProgressTask
) -> tuple[SamplePredictions, EntryCost]:
    """Predict clean or corrupted images."""
    data = load_corrupted_images(job.data, **entry.args) if entry.is_corruption else job.data
    predictions, start = SamplePredictions.allocate(len(data), job.draws), 0
    for batch in _batches_with_progress(job, data, task):
        start = predictions.write(start, _predict(job, batch.x, batch.y))
    passes = torch.full((len(job.data),), float(job.draws))
    return predictions, EntryCost(passes, torch.zeros(len(job.data)))


def _cost_metadata(job: EvaluationJob, cost: EntryCost, seconds: float) -> dict[str, Any]:
    fast_model = job.evaluated.fast_model
    return {
        "seconds": round(seconds, 3),
        "peak_memory_mb": peak_memory_mb(),
        "forward_passes": round(float(cost.forward_passes.double().mean()), 3),
        "backward_passes": round(float(cost.backward_passes.double().mean()), 3),
        "nonfinite_images": cost.nonfinite_images,
        "stages": [[name, *counts] for (_, name), counts in cost.stages.items()],
        "model_optimizations": [] if fast_model is None else list(fast_model.notes),
    }


def _batches_with_progress(
    job: EvaluationJob, data: Dataset, task: ProgressTask
) -> Iterator[Batch]:
    for batch in data.batches(job.batch_size):
        yield batch
        task.advance(len(batch.x))


def _attack_images(
    job: EvaluationJob, entry: SuiteEntry, to_attack: NDArray[np.bool_], task: ProgressTask
) -> tuple[SamplePredictions, EntryCost]:
    """Attack the images in ``to_attack``; the others are misclassified already.

    Images come in chunks that bound the memory; within a chunk batches are kept full.
    """
    attack = create_attack(entry.attack, **load_source_models(entry.args))
    assert entry.threat is not None
    attack_mask = torch.from_numpy(to_attack)
    predictions, start = SamplePredictions.allocate(len(job.data), job.draws), 0
    cost = EntryCost.allocate(len(job.data))
    for batch in job.data.batches(chunk_size(job.data.shape, job.batch_size)):
        mask = attack_mask[start : start + len(batch.x)]
        outcome = _attack_chunk(job, attack, entry.threat, batch, mask, task)
        cost.add_chunk(start, mask, outcome)
        for part in outcome.predictions:
            start = predictions.write(start, part)
        release_freed_memory()
    cost.forward_passes += job.draws
    return predictions, cost


class ChunkOutcome(NamedTuple):
    """What is kept of an attack on a chunk; its images are not."""

    predictions: list[SamplePredictions]
    stage_names: tuple[str, ...] = ()
    counter: PassCounter | None = None  # of the attacked images


def _attack_chunk(
    job: EvaluationJob,
    attack: Attack,
    threat: Threat,
    batch: Batch,
    mask: Tensor,
    task: ProgressTask,
) -> ChunkOutcome:
    """Attack the images of a chunk in the mask, and predict all of them."""
    x, y, ids = batch
    x_adv = x.clone()
    attacked: tuple[Any, ...] = ()
    if mask.any():
        on_progress = fraction_callback(task, len(x))
        fast_model = job.evaluated.fast_model
        options = AttackOptions(job.seed, job.batch_size, True, on_progress, fast_model)
        result = run_attack(
            attack, job.model, x[mask], y[mask], threat, ids=ids[mask], options=options
        )
        x_adv[mask] = result.x_adv.to(x)
        attacked = result.stage_names, result.counter
    distance = threat.perturbation_size(x, x_adv).float().numpy()
    predictions = [
        _predict(job, x_adv[part], y[part])._replace(perturbation_size=distance[part.numpy()])
        for part in torch.arange(len(x)).split(job.batch_size)
    ]
    return ChunkOutcome(predictions, *attacked)


def load_source_models(args: Mapping[str, Any]) -> dict[str, Any]:
    """Load the source models in the arguments of a transfer attack."""
    sources = args.get("sources", ())
    if not any(isinstance(source, str) for source in sources):
        return dict(args)
    return {**args, "sources": [load_model(s) if isinstance(s, str) else s for s in sources]}


def _predict(job: EvaluationJob, x: Tensor, y: Tensor) -> SamplePredictions:
    """Predict with the original model, which alone decides the per-sample results.

    A randomized model makes one prediction in each of several draws.
    """
    check_image_batch(x)
    x = to_model_device(job.model, x)
    with eval_mode(job.model), torch.no_grad():
        logits = torch.stack([job.model(x) for _ in range(job.draws)])
    labels, is_finite = y.to(logits.device), logits.isfinite().all(2)
    predictions = logits.argmax(2)
    losses = F.cross_entropy(
        logits.float().flatten(0, 1), labels.repeat(job.draws), reduction="none"
    )
    return SamplePredictions(
        predictions.mode(0).values.cpu().numpy(),
        ((predictions == labels) & is_finite).T.cpu().numpy(),
        is_finite.all(0).cpu().numpy(),
        losses.view(job.draws, -1).mean(0).cpu().float().numpy(),
        np.zeros(len(x), dtype=np.float32),
    )
