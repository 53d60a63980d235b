"""Jobs: training, evaluations and analyses of one run; finished tasks are skipped."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from buttress.analysis.core import ANALYSES, analyze, resolve_args
from buttress.analysis.subject import (
    AnalysisNotApplicable,
    AnalysisSubject,
    CostScope,
    default_threat,
)
from buttress.config import ComponentSpec
from buttress.data import DatasetFacts, dataset_facts, load_dataset
from buttress.errors import CorruptFileError
from buttress.evaluation import evaluate
from buttress.evaluation.run_entry import entry_passes
from buttress.evaluation.suite import SuiteEntry, SuiteTarget, load_suite, resolve_suite
from buttress.models import load_model
from buttress.models.core import resolve_device
from buttress.models.cost import PassCount
from buttress.results.attack_record import read_record_metadata, skipped_square_queries
from buttress.results.core import read_record_json
from buttress.results.run import CheckpointName, Run, RunFailure
from buttress.results.run_spec import RunSpec
from buttress.studies.grid import ExpandedStudy, LabelFilter, select_runs
from buttress.system.progress import Progress, SilentProgress, track
from buttress.training import train_run
from buttress.training.cost import training_passes
from buttress.training.finetune import finetune_run


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

    @cached_property
    def key(self) -> str:
        return self.spec.key()

    def label(self) -> str:
        return (
            f"{self.spec.model_name} / {self.spec.recipe.name or self.spec.recipe.objective.name}"
        )


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
    data = load_dataset(
        job.spec.dataset, "test", limit=job.test_limit, image_size=job.spec.image_size
    )
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


def _train(job: RunJob, device: str, progress: Progress) -> Run:
    if job.init_folder is None:
        return train_run(job.spec, job.folder, device=device, progress=progress)
    return finetune_run(job.init_folder, job.spec, job.folder, device=device, progress=progress)


TaskKind = Literal["train", "attack", "analysis"]


@dataclass(frozen=True)
class RunTask:
    """One task of a run, and the file that it writes."""

    label: str  # as its progress is called
    kind: TaskKind
    file: Path
    passes: PassCount = field(default_factory=PassCount)  # of an attack: if all images are robust
    images: int = 0  # of an attack
    identity: Mapping[str, Any] = field(default_factory=dict)  # required metadata of the file
    is_repeated: bool = False  # an attack that an earlier suite of the run makes


def tasks_of_job(job: RunJob) -> list[RunTask]:
    """Tasks of a job: training, every attack of every suite, every analysis."""
    run, spec, facts = Run(job.folder), job.spec, cached_facts(job.spec.dataset)
    passes = training_passes(spec, facts)
    tasks = [RunTask(f"train {spec.model_name}", "train", run.path / "done.json", passes)]
    images = min(facts.num_test, job.test_limit or facts.num_test)
    for which in job.checkpoints:
        attacked: list[SuiteEntry] = []
        for suite in job.suites:
            name = suite if which == "best" else f"{suite}-{which}"
            for entry, passes, is_shared in _suite_passes(suite, spec.dataset, spec.image_size):
                path = run.suite_folder(name) / f"{entry.name}.parquet"
                tasks.append(
                    RunTask(
                        f"{suite}: {entry.name}", "attack", path, passes * images, images,
                        {"attack": entry.attack, "args": dict(entry.args),
                         "threat": "" if entry.threat is None else str(entry.threat)},
                        is_shared and entry in attacked,
                    )
                )  # fmt: skip
                attacked += [entry] if is_shared else []
    scope = CostScope(images, spec.num_classes, default_threat(spec, facts))
    for analysis in job.analyses:
        args = resolve_args(ANALYSES.entry(analysis.name), analysis.args)
        passes = ANALYSES.spec(analysis.name).cost(scope, **args)
        file = run.analysis_file(analysis.name)
        tasks.append(RunTask(analysis.name, "analysis", file, passes, identity={"args": args}))
    return tasks


@lru_cache(maxsize=256)
def cached_facts(dataset: str) -> DatasetFacts:
    """Facts of a dataset; one that is not registered is read once."""
    return dataset_facts(dataset)


@lru_cache(maxsize=1024)
def _suite_passes(
    suite: str, dataset: str, image_size: int
) -> tuple[tuple[SuiteEntry, PassCount, bool], ...]:
    """The entries of a suite, their passes per robust image, and whether suites share them."""
    facts, spec = cached_facts(dataset), load_suite(suite)
    entries = resolve_suite(spec, SuiteTarget(facts.budgets, image_size, dataset))
    return tuple(
        (e, entry_passes(e, facts.num_classes), spec.mode == "table" and e.threat is not None)
        for e in entries
    )


RunState = Literal["done", "failed", "started", "new"]


@dataclass(frozen=True)
class TaskUsage:
    """Cost of a finished task."""

    seconds: float
    forward: float = 0.0  # passes per image
    backward: float = 0.0
    peak_memory_mb: float = 0.0  # of its process; 0: not measured


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
    return [read_status(job) for job in track(progress or SilentProgress(), "read runs", jobs)]


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
            summary = read_record_json(task.file)
            peak = float(summary.get("peak_memory_mb", 0.0))
            return TaskUsage(float(summary.get("seconds", 0.0)), peak_memory_mb=peak)
        if task.kind == "analysis":
            identity = read_record_json(task.file)
            is_same = all(identity.get(k) == v for k, v in task.identity.items())
            return TaskUsage(0.0) if is_same else None
        rows, identity = read_record_metadata(task.file)
        # Records marked as made with skipped queries count; older records without the mark do not.
        is_unmarked = skipped_square_queries(identity) and "square_queries" not in identity
        is_same = all(identity.get(k) == v for k, v in task.identity.items())
        if rows == task.images and is_same and not is_unmarked:
            keys = ("seconds", "forward_passes", "backward_passes", "peak_memory_mb")
            return TaskUsage(*(float(identity.get(k, 0.0)) for k in keys))
    return None
