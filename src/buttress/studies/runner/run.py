"""Run a study: options of execution, which do not affect results, the entry point, the status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from buttress.errors import UserError
from buttress.results.study_result import StudyResult
from buttress.studies.answer import write_study_answer
from buttress.studies.grid import ExpandedStudy, LabelFilter
from buttress.studies.jobs import RunJob, RunStatus, make_jobs, read_statuses
from buttress.studies.plan import ActiveRun, StudyStatus, build_plan
from buttress.studies.runner.local import run_jobs
from buttress.studies.runner.queue import FailedJob, lock_path, select_shard
from buttress.studies.speed import fit_speed_model
from buttress.system.cpu import available_cpus, threads_per_worker
from buttress.system.interrupt import interrupt_on_sigterm
from buttress.system.locks import is_stale, read_holder, wait_for_lock
from buttress.system.progress import Progress


@dataclass(frozen=True)
class RunnerOptions:
    """Options of execution."""

    backend: Literal["local", "ray"] = "local"
    workers: int | None = None  # on ray: as many as the cluster has room for
    device: str = "auto"
    shard: tuple[int, int] = (1, 1)  # shard, of how many
    label_filter: LabelFilter | None = None  # of all runs
    retry: bool = False
    ray_address: str | None = None  # of a Ray cluster
    cpus_per_run: float = 1.0
    gpus_per_run: float = 0.0


def run_shard(
    jobs: Sequence[RunJob], options: RunnerOptions, progress: Progress
) -> list[FailedJob]:
    shard_jobs = select_shard(jobs, *options.shard)
    if options.backend == "ray":
        from buttress.studies.runner.ray_cluster import run_on_ray

        return run_on_ray(shard_jobs, options, progress)
    workers = options.workers or default_workers()
    return run_jobs(
        shard_jobs, workers=workers, device=options.device, retry=options.retry, progress=progress
    )


def default_workers() -> int:
    """Default number of workers: one per GPU, or one per CPU core."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    return available_cpus()


@contextmanager
def worker_threads(workers: int) -> Iterator[None]:
    """Use as many threads as each of several workers has, to time models."""
    import torch

    previous_threads = torch.get_num_threads()
    torch.set_num_threads(threads_per_worker(workers))
    try:
        yield
    finally:
        torch.set_num_threads(previous_threads)


def parse_shard(text: str) -> tuple[int, int]:
    """``2/8`` -> (2, 8)."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UserError(f"--shard must be I/N with 1 <= I <= N, e.g. 2/8, but got {text!r}")
    return int(number), int(count)


@dataclass(frozen=True)
class StudyOutcome:
    answer: StudyResult
    failed_jobs: list[FailedJob]
    other_shards: int  # runs of other shards


def run_study(
    expanded: ExpandedStudy, root: Path, options: RunnerOptions, progress: Progress
) -> StudyOutcome:
    """Execute the runs of a shard, then group analyses, and write the answer."""
    jobs = make_jobs(expanded, root, options.label_filter)
    with interrupt_on_sigterm():
        failures = run_shard(jobs, options, progress) if jobs else []
        failed_keys = {failure.job.key for failure in failures}  # some wait for a failed one
        statuses = read_statuses([job for job in jobs if job.key not in failed_keys])
        other_shards = sum(status.state in ("new", "started") for status in statuses)
        with wait_for_lock(expanded.result_path(root).parent.with_suffix(".lock")):
            answer = write_study_answer(expanded, root, progress=progress)
    return StudyOutcome(answer, failures, other_shards)


def read_study_status(
    expanded: ExpandedStudy, root: Path, *, progress: Progress | None = None
) -> StudyStatus:
    """Read counts, locked runs and the estimated remaining time."""
    statuses = read_statuses(make_jobs(expanded, root), progress)
    plan = build_plan(expanded, statuses, fit_speed_model(statuses))
    active = active_runs(statuses)
    active_workers = sum(not run.is_stale for run in active)
    seconds_left = None
    if plan.hours is not None:
        seconds_left = 3600 * plan.hours / max(active_workers, 1)
    return StudyStatus(plan=plan, active_runs=active, seconds_left=seconds_left)


def active_runs(statuses: Sequence[RunStatus]) -> tuple[ActiveRun, ...]:
    """Runs that are locked by a process."""
    return tuple(active for run in statuses if (active := _active_run(run)) is not None)


def _active_run(run: RunStatus) -> ActiveRun | None:
    path = lock_path(run.job)
    holder = read_holder(path)
    if holder is None:
        return None
    return ActiveRun(
        key=run.job.key, label=run.job.label(), host=holder.host, pid=holder.pid,
        started_at=holder.since, epochs_done=_count_lines(run.job.folder / "train.jsonl"),
        epochs_total=run.job.spec.recipe.epochs, tasks_done=len(run.tasks) - len(run.missing),
        is_stale=is_stale(path, holder),
    )  # fmt: skip


def _count_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0
