"""One run of a study, from training to its last analysis: whatever is missing is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from buttress.analysis.core import analyse
from buttress.analysis.subject import DoesNotApply, Subject, threat_of
from buttress.data import load_dataset
from buttress.evaluation import evaluate
from buttress.models import load_model
from buttress.progress import Progress
from buttress.records.run import Run, Which
from buttress.records.spec import RunSpec
from buttress.spec import Component
from buttress.study.cells import Cell
from buttress.study.spec import Scaled
from buttress.training import train_run
from buttress.training.finetune import begin_with


@dataclass(frozen=True)
class Work:
    """A run, and what is wanted of it."""

    spec: RunSpec
    folder: Path
    suites: tuple[str, ...] = ()
    analyses: tuple[Component, ...] = ()
    test_limit: int | None = None
    whiches: tuple[Which, ...] = ("best",)  # the epochs that are evaluated
    source: Path | None = None  # the run whose weights it begins with

    @property
    def key(self) -> str:
        return self.spec.key()

    def label(self) -> str:
        return f"{self.spec.model} / {self.spec.recipe.name or self.spec.recipe.objective.name}"


def work_of(scaled: Scaled, cells: Sequence[Cell], root: Path) -> list[Work]:
    """The work of a study. A run's folder is its key, so that studies share runs."""
    return [
        Work(
            cell.spec,
            root / "runs" / cell.key,
            scaled.suites,
            scaled.analyses,
            scaled.test_limit,
            ("best", "last") if scaled.last_too else ("best",),
            None if cell.source is None else root / "runs" / cell.source,
        )
        for cell in cells
    ]


def complete(work: Work, *, device: str, progress: Progress) -> Run:
    """Trains, evaluates and analyses what is not there yet."""
    run, where = _trained(work, device, progress), device_for(device)
    if not (work.suites or work.analyses):
        return run  # a search only trains: test images are not even read
    data = load_dataset(work.spec.dataset, "test", limit=work.test_limit)
    for which in work.whiches:
        model = load_model(run.path, which=which, device=where)
        for suite in work.suites:
            name = suite if which == "best" else f"{suite}-{which}"
            evaluate(model, data, suite, out=run.suite_folder(name), progress=progress)
    threat = threat_of(work.spec, data)
    model = load_model(run.path, device=where)
    subject = Subject(model, data, threat, work.spec.seed, run, progress)
    for use in work.analyses:
        try:
            analyse(use.name, run, args=use.args, subject=subject, progress=progress)
        except DoesNotApply as reason:
            progress.log(f"{use.name} does not apply to {work.label()}: {reason}")
    return run


def device_for(name: str) -> str:
    """Where attacks run: what was asked for, or with ``auto`` the fastest there is."""
    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _trained(work: Work, device: str, progress: Progress) -> Run:
    if work.source is None:
        return train_run(work.spec, work.folder, device=device, progress=progress)
    return begin_with(work.source, work.spec, work.folder, device=device, progress=progress)
