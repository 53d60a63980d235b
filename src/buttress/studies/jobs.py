"""Jobs: training, evaluations and analyses of one run; finished tasks are skipped."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import torch

from buttress.analysis.core import ANALYSES, analyze, resolve_args
from buttress.analysis.subject import AnalysisNotApplicable, AnalysisSubject, default_threat
from buttress.config import ComponentSpec
from buttress.data import DatasetFacts, dataset_facts, load_dataset
from buttress.engine.cost import PassEstimate, expected_passes, max_passes
from buttress.errors import CorruptFileError
from buttress.evaluation import evaluate
from buttress.evaluation.suite import SuiteEntry, load_suite, resolve_suite
from buttress.models import load_model
from buttress.models.core import is_known
from buttress.models.cost import (
    ModelCost,
    SkipInitialization,
    count_macs,
    count_macs_on_meta,
    count_parameters,
)
from buttress.results.attack_record import read_record_metadata, skipped_square_queries
from buttress.results.core import read_record_json
from buttress.results.run import CheckpointName, Run, RunFailure
from buttress.results.run_spec import Recipe, RunSpec
from buttress.studies.grid import ExpandedStudy, LabelFilter, select_runs
from buttress.system.progress import Progress, SilentProgress
from buttress.training import train_run
from buttress.training.finetune import finetune_run
from buttress.training.objectives import OBJECTIVES
from buttress.training.train import build_model


@dataclass(frozen=True)
class RunJob:
    """A run with its suites and analyses."""

    spec: RunSpec
    folder: Path
    suites: tuple[str, ...] = ()
    analyses: tuple[ComponentSpec, ...] = ()
    test_limit: int | None = None
    checkpoints: tuple[CheckpointName, ...] = ("best",)  # the epochs that are evaluated
    init_folder: Path | None = None  # the run that provides its initial weights

    @property
    def key(self) -> str:
        return self.spec.key()

    def label(self) -> str:
        return f"{self.spec.model} / {self.spec.recipe.name or self.spec.recipe.objective.name}"


def make_jobs(
    expanded: ExpandedStudy, root: Path, label_filter: LabelFilter | None = None
) -> list[RunJob]:
    """Jobs of a study, or of its runs with some labels, each run once.

    A run's folder is named by its key, so that studies share runs.
    """
    scaled = expanded.scaled
    jobs = {
        run.key: RunJob(
            run.spec,
            root / "runs" / run.key,
            scaled.suites,
            scaled.analyses,
            scaled.test_limit,
            ("best", "last") if scaled.evaluate_last else ("best",),
            None if run.init_key is None else root / "runs" / run.init_key,
        )
        for run in select_runs(expanded.runs, label_filter or {})
    }
    return list(jobs.values())


def complete_run(job: RunJob, *, device: str, progress: Progress) -> Run:
    """Train, evaluate and analyze what is missing of a run."""
    run, where = _train(job, device, progress), resolve_device(device)
    if not (job.suites or job.analyses):
        return run  # a search only trains; test images are not read
    data = load_dataset(job.spec.dataset, "test", limit=job.test_limit)
    for which in job.checkpoints:
        model = load_model(run.path, checkpoint=which, device=where)
        for suite in job.suites:
            name = suite if which == "best" else f"{suite}-{which}"
            evaluate(model, data, suite, out=run.suite_folder(name), progress=progress)
    threat = default_threat(job.spec, data)
    model = load_model(run.path, device=where)
    subject = AnalysisSubject(model, data, threat, job.spec.seed, run, progress)
    for analysis in job.analyses:
        try:
            analyze(analysis.name, run, args=analysis.args, subject=subject, progress=progress)
        except AnalysisNotApplicable as reason:
            progress.log(f"{analysis.name} does not apply to {job.label()}: {reason}")
    return run


def resolve_device(name: str) -> str:
    """Device of the attacks; ``auto`` is the fastest available."""
    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _train(job: RunJob, device: str, progress: Progress) -> Run:
    if job.init_folder is None:
        return train_run(job.spec, job.folder, device=device, progress=progress)
    return finetune_run(job.init_folder, job.spec, job.folder, device=device, progress=progress)


TaskKind = Literal["train", "attack", "analysis"]
NO_PASSES = PassEstimate(0)
LOOKS_TWICE = ("trades", "mart", "rst", "alp")  # losses on clean and adversarial images


@dataclass(frozen=True)
class RunTask:
    """One task of a run, and the file that it writes."""

    label: str  # as its progress is called
    kind: TaskKind
    file: Path
    images: int = 0  # of a record
    typical: PassEstimate = NO_PASSES  # of a record: for a robust image
    forward_passes: float = 0.0  # passes of single images in all
    backward_passes: float = 0.0  # to the image only
    weight_backward_passes: float = 0.0  # backward passes to the weights too
    identity: Mapping[str, Any] = field(default_factory=dict)  # required metadata of the file

    def macs(self, forward_macs: float) -> float:
        """MACs: a backward pass costs as a forward pass, and one more for the weights."""
        return forward_macs * (
            self.forward_passes + self.backward_passes + 2 * self.weight_backward_passes
        )


def tasks_of_job(job: RunJob) -> list[RunTask]:
    """Tasks of a job: training, every attack of every suite, every analysis."""
    run = Run(job.folder)
    tasks = [training_passes(job.spec, run.path / "done.json")]
    for which in job.checkpoints:
        for suite in job.suites:
            name = suite if which == "best" else f"{suite}-{which}"
            for entry, upper_bound, usual in _suite_passes(
                suite, job.spec.dataset, job.spec.num_classes
            ):
                path = run.suite_folder(name) / f"{entry.name}.parquet"
                tasks.append(attack_task(entry, (upper_bound, usual), suite, job, path))
    for analysis in job.analyses:
        identity = {"args": _resolved_args(analysis)}
        tasks.append(
            RunTask(analysis.name, "analysis", run.analysis_file(analysis.name), identity=identity)
        )
    return tasks


def _resolved_args(analysis: ComponentSpec) -> dict[str, Any]:
    """Arguments that the file of an analysis must have."""
    return resolve_args(ANALYSES.entry(analysis.name), analysis.args)


def training_passes(spec: RunSpec, file: Path) -> RunTask:
    """The passes of a recipe: its attack, its loss, and the epochs' validation."""
    recipe, known = spec.recipe, facts(spec.dataset)
    images = min(known.num_train, spec.limit or known.num_train) * recipe.epochs
    objective = OBJECTIVES.create(recipe.objective.name, recipe.objective.args)
    steps = getattr(objective, "steps", 0) if recipe.threat else 0
    if getattr(objective, "combine", "") in ("max", "avg"):  # one attack for each norm
        steps *= len(getattr(objective, "threats", ("",)))
    loss_passes = objective.repeats * (2 if recipe.objective.name in LOOKS_TWICE else 1)
    loss_passes += 0 if recipe.awp is None else 1
    validation_images = min(known.num_test, recipe.validation.limit or known.num_test)
    validation_images *= sum(map(partial(is_validation_epoch, recipe), range(1, recipe.epochs + 1)))
    validation_steps = recipe.validation.attack.args.get("steps", 10) if recipe.threat else 0
    return RunTask(
        f"train {spec.model}", "train", file,
        forward_passes=images * (steps + loss_passes) + validation_images * (validation_steps + 1),
        backward_passes=images * steps + validation_images * validation_steps,
        weight_backward_passes=images * loss_passes,
    )  # fmt: skip


def is_validation_epoch(recipe: Recipe, epoch: int) -> bool:
    """Whether an epoch, counted from 1, is validated."""
    validation = recipe.validation
    return epoch == recipe.epochs or (
        epoch % validation.every == 0 and epoch >= validation.from_epoch
    )


def attack_task(
    entry: SuiteEntry,
    passes: tuple[PassEstimate, PassEstimate],
    suite: str,
    job: RunJob,
    file: Path,
) -> RunTask:
    """Task of an attack, with the maximum and the typical passes of a robust image."""
    upper_bound, typical = passes
    known = facts(job.spec.dataset)
    images = min(known.num_test, job.test_limit or known.num_test)
    threat = "" if entry.threat is None else str(entry.threat)
    return RunTask(
        f"{suite}: {entry.name}", "attack", file, images, typical,
        forward_passes=images * upper_bound.forward, backward_passes=images * upper_bound.backward,
        identity={"attack": entry.attack, "args": dict(entry.args), "threat": threat},
    )  # fmt: skip


def progress_units(job: RunJob) -> dict[str, float]:
    """Fraction of the progress bar of each task, by its label."""
    units: dict[str, float] = {}
    for task in tasks_of_job(job):
        units[task.label] = units.get(task.label, 0.0) + task.macs(1.0)
    return units


@lru_cache(maxsize=256)
def facts(dataset: str) -> DatasetFacts:
    """Facts of a dataset; one that is not registered is read once."""
    return dataset_facts(dataset)


@lru_cache(maxsize=1024)
def _suite_passes(
    suite: str, dataset: str, classes: int
) -> tuple[tuple[SuiteEntry, PassEstimate, PassEstimate], ...]:
    """The attacks of a suite and their passes per image."""
    entries = resolve_suite(load_suite(suite), facts(dataset).budgets, dataset)
    return tuple(
        (
            entry,
            max_passes(entry.attack, entry.args, entry.threat, classes),
            expected_passes(entry.attack, entry.args, entry.threat, classes),
        )
        for entry in entries
    )


_COSTS: dict[tuple[Any, ...], ModelCost] = {}


def model_cost(spec: RunSpec) -> ModelCost:
    """Parameters and MACs of a run's model, computed without memory for weights."""
    size = (spec.num_classes, spec.image_size, spec.in_channels)
    key = (spec.model, repr(sorted(spec.model_args.items())), *size)
    if key not in _COSTS:
        with torch.device("meta"), SkipInitialization():
            model = build_model(spec)
        count = count_macs_on_meta if is_known(spec.model) else count_macs
        macs = int(count(model.eval(), spec.image_size))
        _COSTS[key] = ModelCost(count_parameters(model), macs)
    return _COSTS[key]


def macs_of(spec: RunSpec) -> int:
    """MACs per image of a run's model."""
    return model_cost(spec).macs


RunState = Literal["done", "failed", "started", "new"]


@dataclass(frozen=True)
class TaskUsage:
    """Cost of a finished task."""

    seconds: float
    forward: float = 0.0  # passes per image
    backward: float = 0.0


@dataclass(frozen=True)
class RunStatus:
    """Current state of a run."""

    job: RunJob
    tasks: tuple[RunTask, ...]
    missing: tuple[RunTask, ...]
    usage: Mapping[Path, TaskUsage] = field(default_factory=dict)  # by the file of the task
    failure: RunFailure | None = None
    is_started: bool = False

    @property
    def state(self) -> RunState:
        if not self.missing:
            return "done"
        if self.failed_here:
            return "failed"
        return "started" if self.is_started else "new"

    @property
    def error(self) -> str:
        """Error of the run, if a task of this study failed."""
        return self.failure.message if self.failure and self.state == "failed" else ""

    @property
    def failed_here(self) -> bool:
        """Whether the failure is of a task of this job, not of another study."""
        if self.failure is None or self.failure.file is None:
            return self.failure is not None
        return self.job.folder / self.failure.file in [task.file for task in self.missing]


def read_statuses(jobs: Sequence[RunJob], progress: Progress | None = None) -> list[RunStatus]:
    """Read the state of every run."""
    bar = (progress or SilentProgress()).add_task("read runs", len(jobs))
    statuses = []
    for job in jobs:
        statuses.append(read_status(job))
        bar.advance()
    bar.close()
    return statuses


def read_status(job: RunJob) -> RunStatus:
    tasks = tuple(tasks_of_job(job))
    if not job.folder.is_dir():
        return RunStatus(job, tasks, tasks)
    usage = {
        task.file: task_usage for task in tasks if (task_usage := _read_usage(task)) is not None
    }
    run = Run(job.folder)
    return RunStatus(
        job, tasks, tuple(t for t in tasks if t.file not in usage), usage, run.failure, run.exists
    )


def _read_usage(task: RunTask) -> TaskUsage | None:
    """Cost of a task if its file exists and is of the same images and settings."""
    with contextlib.suppress(CorruptFileError, FileNotFoundError, NotADirectoryError):
        if task.kind == "train":
            return TaskUsage(float(read_record_json(task.file).get("seconds", 0.0)))
        if task.kind == "analysis":
            identity = read_record_json(task.file)
            return (
                TaskUsage(0.0)
                if all(identity.get(k) == v for k, v in task.identity.items())
                else None
            )
        rows, identity = read_record_metadata(task.file)
        # Records that say that queries were skipped count; those of before it was said do not.
        is_unmarked = skipped_square_queries(identity) and "square_queries" not in identity
        is_same = all(identity.get(k) == v for k, v in task.identity.items())
        if rows == task.images and is_same and not is_unmarked:
            return TaskUsage(
                *(
                    float(identity.get(k, 0.0))
                    for k in ("seconds", "forward_passes", "backward_passes")
                )
            )
    return None
