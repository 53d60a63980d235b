"""Run a study: options of execution, which do not affect results, and the entry point."""

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
from buttress.studies.jobs import RunJob, make_jobs, read_statuses
from buttress.studies.runner.local import run_jobs
from buttress.studies.runner.queue import FailedJob, select_shard
from buttress.system.cpu import available_cpus, threads_per_worker
from buttress.system.interrupt import interrupt_on_sigterm
from buttress.system.locks import wait_for_lock
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
    """Execute the jobs of a shard."""
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
    """Outcome of running a study."""

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
