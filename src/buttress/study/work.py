"""One run of a study, from training to its last analysis: whatever is missing is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from buttress.analysis.core import analyse
from buttress.analysis.subject import Subject, threat_of
from buttress.data import load_dataset
from buttress.evaluation import evaluate, load_suite
from buttress.evaluation.suite import resolve_suite
from buttress.models import load_model
from buttress.progress import Progress
from buttress.records.run import Run
from buttress.records.spec import RunSpec
from buttress.study.spec import StudySpec
from buttress.training import train_run


@dataclass(frozen=True)
class Work:
    """A run, and what is wanted of it."""

    spec: RunSpec
    folder: Path
    suites: tuple[str, ...]
    analyses: tuple[str, ...]
    test_limit: int | None = None

    def label(self) -> str:
        return f"{self.spec.model} / {self.spec.recipe.name or self.spec.recipe.objective.name}"

    def units(self) -> dict[str, float]:
        """Rough cost by the name of each task, in passes: what a progress bar is divided by."""
        recipe = self.spec.recipe
        images = len(load_dataset(self.spec.dataset, "train", limit=self.spec.limit))
        attacked = 1 + recipe.objective.args.get("steps", 10 if recipe.threat else 0)
        found = {f"train {self.spec.model}": 3.0 * recipe.epochs * images * attacked}
        data = load_dataset(self.spec.dataset, "test", limit=self.test_limit)
        for name in self.suites:
            for entry in resolve_suite(load_suite(name), data.budgets, data.name):
                passes = entry.args.get("steps", 1 if entry.threat is None else 20)
                found[f"{name}: {entry.name}"] = 1.0 * len(data) * passes
        return found


def work_of(study: StudySpec, specs: Sequence[RunSpec], root: Path) -> list[Work]:
    """The work of a study. A run's folder is its key, so that studies share runs."""
    return [
        Work(s, root / "runs" / s.key(), study.suites, study.analyses, study.test_limit)
        for s in specs
    ]


def complete(work: Work, *, device: str, progress: Progress) -> Run:
    """Trains, evaluates and analyses what is not there yet."""
    run = train_run(work.spec, work.folder, device=device, progress=progress)
    model = load_model(run.path)
    data = load_dataset(work.spec.dataset, "test", limit=work.test_limit)
    for suite in work.suites:
        evaluate(model, data, suite, out=run.suite_folder(suite), progress=progress)
    subject = Subject(model, data, threat_of(work.spec, data), work.spec.seed, run, progress)
    for name in work.analyses:
        analyse(name, run, subject=subject, progress=progress)
    return run
