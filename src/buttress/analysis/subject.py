"""Subjects of analyses: a trained model with its images, or a group of runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.attacks.core import Attack, create_attack
from buttress.data import Dataset, DatasetFacts, load_dataset
from buttress.engine.checks import check_model_output
from buttress.engine.options import AttackOptions
from buttress.engine.result import AttackResult
from buttress.engine.run import run_attack
from buttress.errors import UserError
from buttress.models import load_model
from buttress.models.eval_mode import eval_mode, to_model_device
from buttress.models.loading.core import ModelRequest
from buttress.models.loading.load import load_requested_model
from buttress.results.run import CheckpointName, Run
from buttress.results.run_spec import RunSpec
from buttress.system.progress import Progress, SilentProgress
from buttress.threats.core import Threat
from buttress.threats.norm_ball import NormBall
from buttress.training.train import build_model

MAX_KEY = 100  # characters of the name of a folder
EPOCH_PREFIX = "epoch "  # and its number: the name of the checkpoint of a kept epoch


class AnalysisNotApplicable(UserError):
    """Raised if an analysis does not apply to a model; the message says why."""


@dataclass(frozen=True)
class CostScope:
    """What the cost of an analysis depends on beside its arguments; known without a model."""

    num_images: int  # test images
    num_classes: int
    threat: NormBall
    num_checkpoints: int = 1


@dataclass(frozen=True)
class AnalysisSubject:
    """A trained model with its test images and threat model."""

    model: nn.Module
    data: Dataset
    threat: NormBall  # the one it was trained on, or the usual one of its data
    seed: int = 0
    run: Run | None = None  # None for a model that is not a run
    progress: Progress = field(default_factory=SilentProgress, compare=False)

    @property
    def scope(self) -> CostScope:
        num_checkpoints = len(self.checkpoints())
        return CostScope(len(self.data), self.data.num_classes, self.threat, num_checkpoints)

    def checkpoints(self) -> dict[str, CheckpointName | int]:
        """The subject's own, that of the last epoch where it is another one, and kept epochs."""
        run = self.run
        if run is None or not run.is_trained:
            return {"given": "best"}
        best, last = run.summary["best_epoch"], run.summary["epochs"]
        checkpoints: dict[str, CheckpointName | int] = {"best": "best"}
        if best != last and run.checkpoint("last").is_file():
            checkpoints["last"] = "last"
        kept_epochs = [n for n in run.kept_epochs if n not in (best, last)]
        return checkpoints | {f"{EPOCH_PREFIX}{n}": n for n in kept_epochs}

    def first_images(self, count: int) -> Dataset:
        """The first images, or all where there are fewer."""
        return self.data.select(range(min(count, len(self.data))))

    def load_training_images(self, count: int) -> Dataset:
        """Images of the training split without augmentation; of its own where there is no run."""
        if self.run is None:
            return self.first_images(count)
        spec = self.run.spec
        return load_dataset(spec.dataset, "train", limit=count, image_size=spec.image_size)

    def attack(
        self, attack: Attack, sample: ImageSample, options: AttackOptions | None = None
    ) -> AttackResult:
        """Attack the images of a sample within the subject's threat model."""
        options, ids = options or AttackOptions(self.seed), sample.ids
        return run_attack(
            attack, self.model, sample.x, sample.y, self.threat, ids=ids, options=options
        )

    def build_initial_model(self) -> nn.Module:
        if self.run is None:
            raise AnalysisNotApplicable(
                "initial weights are only known for a run, not for a bare model"
            )
        if self.run.spec.initial_weights is not None:
            raise AnalysisNotApplicable(
                "the run was fine-tuned from other weights, so it has no random initial weights"
            )
        return build_model(self.run.spec).eval()


def load_subject(
    run: Run, *, limit: int | None = None, progress: Progress | None = None
) -> AnalysisSubject:
    """The best model of a run, on its test images."""
    spec = run.spec
    data = load_dataset(spec.dataset, "test", limit=limit, image_size=spec.image_size)
    model = load_model(run.path)
    return AnalysisSubject(
        model, data, default_threat(spec, data), spec.seed, run, progress or SilentProgress()
    )


def default_threat(spec: RunSpec, data: Dataset | DatasetFacts) -> NormBall:
    """Norm ball of a run's training; the default Linf one of its data if it had no norm ball."""
    trained = Threat.parse(spec.recipe.threat) if spec.recipe.threat else None
    return trained if isinstance(trained, NormBall) else NormBall("Linf", data.budgets["Linf"])


@dataclass(frozen=True)
class NamedModel:
    """A model that is not a run, by any name that `load_model` takes, with images for it."""

    source: str
    data: Dataset
    request: ModelRequest = field(default_factory=ModelRequest)

    @property
    def label(self) -> str:
        name = Path(self.source).name if Path(self.source).exists() else self.source
        return f"{name} ({self.request.model})" if self.request.model else name

    @property
    def key(self) -> str:
        """The source as the name of a folder or key."""
        text = f"{self.source} {self.request.model or ''}"
        return re.sub(r"[^\w-]+", "-", text).strip("-")[-MAX_KEY:]

    def load_subject(self, progress: Progress | None = None) -> AnalysisSubject:
        """The model on its images, with the usual Linf threat model of these."""
        model = load_requested_model(self.source, self.request)
        threat = NormBall("Linf", self.data.budgets["Linf"])
        return AnalysisSubject(model, self.data, threat, progress=progress or SilentProgress())


@dataclass(frozen=True)
class RunGroup:
    """Several runs and other models that are compared. Each is loaded when it is needed."""

    members: tuple[Run | NamedModel, ...]
    limit: int | None = None  # test images
    progress: Progress = field(default_factory=SilentProgress, compare=False)
    given_labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self) < 2:
            raise UserError(f"this analysis compares runs: give at least two, but got {len(self)}")

    def __len__(self) -> int:
        return len(self.members)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The members that are runs."""
        return tuple(member for member in self.members if isinstance(member, Run))

    def require_one_dataset(self) -> None:
        """Raise `UserError` for runs and models of different datasets."""
        names = sorted(
            {m.spec.dataset if isinstance(m, Run) else m.data.name for m in self.members}
        )
        if len(names) > 1:
            raise UserError(f"all runs must use the same dataset, but got {', '.join(names)}")

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return self.given_labels or run_labels(self.members)

    def subject(self, index: int) -> AnalysisSubject:
        return load_member(self.members[index], limit=self.limit, progress=self.progress)

    def subjects(self) -> Iterator[tuple[str, AnalysisSubject]]:
        for index, label in enumerate(self.labels):
            yield label, self.subject(index)


def load_member(
    member: Run | NamedModel, *, limit: int | None = None, progress: Progress | None = None
) -> AnalysisSubject:
    """A run on its first ``limit`` test images, or a model on the images it comes with."""
    if isinstance(member, NamedModel):
        return member.load_subject(progress)
    return load_subject(member, limit=limit, progress=progress)


def run_labels(runs: Sequence[Run | NamedModel]) -> tuple[str, ...]:
    """A short name for each run; the folder is added if runs share model and recipe."""
    labels: list[str] = []
    for run in runs:
        if isinstance(run, NamedModel):
            labels.append(run.label if run.label not in labels else run.source)
            continue
        spec = run.spec
        label = f"{spec.model_name} / {spec.recipe.name or spec.recipe.objective.name}"
        labels.append(label if label not in labels else f"{label} ({run.path.name})")
    return tuple(labels)


SAMPLE_BATCH = 128


@dataclass(frozen=True)
class ImageSample:
    """Images on the device of the model."""

    x: Tensor  # (N, C, H, W)
    y: Tensor  # (N,)
    ids: Tensor  # (N,)

    def __len__(self) -> int:
        return len(self.x)

    def select(self, rows: slice) -> ImageSample:
        return ImageSample(self.x[rows], self.y[rows], self.ids[rows])

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.x.split(SAMPLE_BATCH), self.y.split(SAMPLE_BATCH), strict=True)


def load_sample(model: nn.Module, data: Dataset) -> ImageSample:
    """All images of a dataset."""
    if len(data) == 0:
        raise UserError(
            "at least one image is needed, but the dataset is empty; use a larger `limit`"
        )
    x, y, ids = data.take(torch.arange(len(data)))
    x = to_model_device(model, x)
    with eval_mode(model):
        check_model_output(model, x[:1], y)
    return ImageSample(x, y.to(x.device), ids)


def attack_sample(
    subject: AnalysisSubject, sample: ImageSample, steps: int, attack: str = "pgd"
) -> ImageSample:
    """Attack the sample with the current model."""
    options = AttackOptions(subject.seed, SAMPLE_BATCH, workers=1)
    x_adv = subject.attack(create_attack(attack, steps=steps), sample, options).x_adv
    return replace(sample, x=x_adv)


class SampleLoss(NamedTuple):
    """Cross-entropy of a model on a sample."""

    mean: float
    per_image: Tensor  # (N,), on the CPU


def sample_loss(model: nn.Module, sample: ImageSample) -> SampleLoss:
    """Cross-entropy of a model in evaluation mode."""
    total, parts = 0.0, []
    with torch.no_grad():
        for x, y in sample.batches():
            logits = model(x).double()
            total += float(F.cross_entropy(logits, y, reduction="sum"))
            parts.append(F.cross_entropy(logits, y, reduction="none").cpu())
    return SampleLoss(total / len(sample), torch.cat(parts))


def mean_loss(model: nn.Module, sample: ImageSample) -> float:
    """Mean cross-entropy of a model in evaluation mode."""
    return sample_loss(model, sample).mean
