"""What an analysis looks at: one trained model with its images, or a group of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.attacks.core import create_attack
from buttress.data import Dataset, load_dataset
from buttress.engine.options import AttackOptions
from buttress.engine.run import check_model_output, run_attack
from buttress.errors import UserError
from buttress.models import load_model
from buttress.models.eval_mode import eval_mode, to_model_device
from buttress.results.run import Run
from buttress.results.run_spec import RunSpec
from buttress.system.progress import Progress, SilentProgress
from buttress.threats.norm_ball import Threat
from buttress.training.train import build_model


class AnalysisNotApplicable(UserError):
    """An analysis that has no meaning for a model; the message says why."""


@dataclass(frozen=True)
class AnalysisSubject:
    """A trained model, the images it is looked at with, and the ball it is attacked in."""

    model: nn.Module
    data: Dataset
    threat: Threat  # the one it was trained on, or the usual one of its data
    seed: int = 0
    run: Run | None = None  # where it comes from; None for a model that is no run
    progress: Progress = field(default_factory=SilentProgress, compare=False)

    def first_images(self, count: int) -> Dataset:
        """The first images, or all where there are fewer."""
        return self.data.select(range(min(count, len(self.data))))

    def load_training_images(self, count: int) -> Dataset:
        """Images of the training split without augmentation; of its own where there is no run."""
        if self.run is None:
            return self.first_images(count)
        return load_dataset(self.run.spec.dataset, "train", limit=count)

    def build_initial_model(self) -> nn.Module:
        """The network with the weights that training began with."""
        if self.run is None:
            raise AnalysisNotApplicable(
                "initial weights are known for a run only, not for a bare model"
            )
        if self.run.spec.start is not None:
            raise AnalysisNotApplicable(
                "the run began with the weights of another, not with fresh ones"
            )
        return build_model(self.run.spec).eval()


def load_subject(
    run: Run, *, limit: int | None = None, progress: Progress | None = None
) -> AnalysisSubject:
    """The best model of a run, on its test images."""
    spec = run.spec
    data = load_dataset(spec.dataset, "test", limit=limit)
    model = load_model(run.path)
    return AnalysisSubject(
        model, data, default_threat(spec, data), spec.seed, run, progress or SilentProgress()
    )


def default_threat(spec: RunSpec, data: Dataset) -> Threat:
    """What a run was trained against; for standard training the usual Linf ball of its data."""
    trained = spec.recipe.threat
    return Threat.parse(trained) if trained else Threat("Linf", data.budgets["Linf"])


@dataclass(frozen=True)
class RunGroup:
    """Several runs that are looked at together. Models are loaded one at a time, when asked for."""

    runs: tuple[Run, ...]
    limit: int | None = None  # test images
    progress: Progress = field(default_factory=SilentProgress, compare=False)

    def __post_init__(self) -> None:
        if len(self.runs) < 2:
            raise UserError(f"this analysis compares runs: give two or more, not {len(self.runs)}")

    def __len__(self) -> int:
        return len(self.runs)

    def require_one_dataset(self) -> None:
        """Refuses runs of different data sets."""
        names = sorted({run.spec.dataset for run in self.runs})
        if len(names) > 1:
            raise UserError(
                f"the runs must share a data set, but they have {', '.join(names)}; "
                "name runs of one"
            )

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return run_labels(self.runs)

    def subject(self, index: int) -> AnalysisSubject:
        return load_subject(self.runs[index], limit=self.limit, progress=self.progress)

    def subjects(self) -> Iterator[tuple[str, AnalysisSubject]]:
        for index, label in enumerate(self.labels):
            yield label, self.subject(index)


def run_labels(runs: Sequence[Run]) -> tuple[str, ...]:
    """A short name for each run; the folder tells runs apart that share model and recipe."""
    labels: list[str] = []
    for run in runs:
        spec = run.spec
        label = f"{spec.model} / {spec.recipe.name or spec.recipe.objective.name}"
        labels.append(label if label not in labels else f"{label} ({run.path.name})")
    return tuple(labels)


SAMPLE_BATCH = 128


@dataclass(frozen=True)
class ImageSample:
    """Images on the device of the network."""

    x: Tensor  # (N, C, H, W)
    y: Tensor  # (N,)
    ids: Tensor  # (N,)

    def __len__(self) -> int:
        return len(self.x)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.x.split(SAMPLE_BATCH), self.y.split(SAMPLE_BATCH), strict=True)


def load_sample(model: nn.Module, data: Dataset) -> ImageSample:
    """All images of a data set."""
    if len(data) == 0:
        raise UserError("need at least one image, but there is none; give a larger `limit`")
    x, y, ids = data.take(torch.arange(len(data)))
    x = to_model_device(model, x)
    with eval_mode(model):
        check_model_output(model, x[:1], y)
    return ImageSample(x, y.to(x.device), ids)


def attack_sample(
    subject: AnalysisSubject, sample: ImageSample, steps: int, attack: str = "pgd"
) -> ImageSample:
    """The same images after an attack on the network as it is now."""
    chosen_attack = create_attack(attack, steps=steps)
    out = run_attack(
        chosen_attack,
        subject.model,
        sample.x,
        sample.y,
        subject.threat,
        ids=sample.ids,
        options=AttackOptions(subject.seed, SAMPLE_BATCH, workers=1),
    )
    return replace(sample, x=out.x_adv)


def mean_loss(model: nn.Module, sample: ImageSample) -> float:
    """The mean cross-entropy of a network in evaluation mode."""
    total = 0.0
    with torch.no_grad():
        for x, y in sample.batches():
            total += float(F.cross_entropy(model(x).double(), y, reduction="sum"))
    return total / len(sample)
