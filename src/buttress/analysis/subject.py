"""What an analysis looks at: one trained model with its images, or a group of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from buttress.data import Dataset, load_dataset
from buttress.errors import UserError
from buttress.models import load_model
from buttress.progress import Progress, Silent
from buttress.records.run import Run
from buttress.records.spec import RunSpec
from buttress.threat import Threat
from buttress.training.train import build


class DoesNotApply(UserError):
    """An analysis that has no meaning for a model; the message says why."""


@dataclass(frozen=True)
class Subject:
    """A trained model, the images it is looked at with, and the ball it is attacked in."""

    model: nn.Module
    data: Dataset
    threat: Threat  # the one it was trained on, or the usual one of its data
    seed: int = 0
    run: Run | None = None  # where it comes from; None for a model that is no run
    progress: Progress = field(default_factory=Silent, compare=False)

    def first(self, count: int) -> Dataset:
        """The first images, or all where there are fewer."""
        return self.data.select(range(min(count, len(self.data))))

    def training_images(self, count: int) -> Dataset:
        """Images of the training split without augmentation; of its own where there is no run."""
        if self.run is None:
            return self.first(count)
        return load_dataset(self.run.spec.dataset, "train", limit=count)

    def initial_model(self) -> nn.Module:
        """The network with the weights that training began with."""
        if self.run is None:
            raise DoesNotApply("initial weights are known for a run only, not for a bare model")
        if self.run.spec.start is not None:
            raise DoesNotApply("the run began with the weights of another, not with fresh ones")
        return build(self.run.spec).eval()


def subject_of(run: Run, *, limit: int | None = None, progress: Progress | None = None) -> Subject:
    """The best model of a run, on its test images."""
    spec = run.spec
    data = load_dataset(spec.dataset, "test", limit=limit)
    model = load_model(run.path)
    return Subject(model, data, threat_of(spec, data), spec.seed, run, progress or Silent())


def threat_of(spec: RunSpec, data: Dataset) -> Threat:
    """What a run was trained against; for standard training the usual Linf ball of its data."""
    trained = spec.recipe.threat
    return Threat.parse(trained) if trained else Threat("Linf", data.budgets["Linf"])


@dataclass(frozen=True)
class Group:
    """Several runs that are looked at together. Models are loaded one at a time, when asked for."""

    runs: tuple[Run, ...]
    limit: int | None = None  # test images
    progress: Progress = field(default_factory=Silent, compare=False)

    def __post_init__(self) -> None:
        if len(self.runs) < 2:
            raise UserError(f"this analysis compares runs: give two or more, not {len(self.runs)}")

    def __len__(self) -> int:
        return len(self.runs)

    def check(self) -> None:
        """Refuses runs of different data sets."""
        names = sorted({run.spec.dataset for run in self.runs})
        if len(names) > 1:
            raise UserError(
                f"the runs must share a data set, but they have {', '.join(names)}; "
                "name runs of one"
            )

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return labels_of(self.runs)

    def subject(self, index: int) -> Subject:
        return subject_of(self.runs[index], limit=self.limit, progress=self.progress)

    def subjects(self) -> Iterator[tuple[str, Subject]]:
        for index, label in enumerate(self.labels):
            yield label, self.subject(index)


def labels_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """A short name for each run; the folder tells runs apart that share model and recipe."""
    found: list[str] = []
    for run in runs:
        spec = run.spec
        label = f"{spec.model} / {spec.recipe.name or spec.recipe.objective.name}"
        found.append(label if label not in found else f"{label} ({run.path.name})")
    return tuple(found)
