"""Execute jobs on a Ray cluster whose nodes share a file system.

Ray decides where a run goes and notices that a node is gone; the lock of a run prevents that it is
executed twice, as everywhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buttress.errors import UserError
from buttress.studies.jobs import RunJob
from buttress.studies.runner.local import POLL_SECONDS, record_try
from buttress.studies.runner.progress import StudyProgress
from buttress.studies.runner.queue import FailedJob, RunQueue, TryResult, try_run
from buttress.system.progress import Progress, SilentProgress

if TYPE_CHECKING:
    from buttress.studies.runner.run import RunnerOptions

EXTRA_TASKS = 2  # submitted tasks beyond the capacity of the cluster, or 5% if that is more
CAPACITY_SECONDS = 5.0  # until the capacity of the cluster is asked for again


def run_on_ray(
    jobs: Sequence[RunJob], options: RunnerOptions, progress: Progress
) -> list[FailedJob]:
    """Execute all jobs on a Ray cluster: a given one, a running one, or a new one."""
    ray = connect(options.ray_address, progress)
    queue = RunQueue([with_absolute_paths(work) for work in jobs], retry=options.retry)
    study_progress = StudyProgress(queue.jobs, progress)
    remote_run = ray.remote(
        num_cpus=options.cpus_per_run, num_gpus=options.gpus_per_run, max_retries=0
    )(run_on_node)
    running: dict[Any, int] = {}
    try:
        capacity, is_known_until = 0, 0.0
        while queue.unfinished:
            if time.monotonic() >= is_known_until:  # nodes come and go
                capacity = options.workers or _num_tasks(ray, options)
                is_known_until = time.monotonic() + CAPACITY_SECONDS
            while len(running) < capacity and (index := queue.next_job()) is not None:
                running[
                    remote_run.remote(queue.jobs[index], options.device, options.cpus_per_run)
                ] = index
            for reference in _finished_tasks(ray, list(running)):
                _collect(ray, reference, running.pop(reference), queue, study_progress)
            if not running and queue.unfinished:
                time.sleep(POLL_SECONDS)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        study_progress.close()
        ray.shutdown()
    return queue.failed_jobs()


def connect(address: str | None, progress: Progress) -> Any:
    """Connect to a Ray cluster: a given one, a running one, or a new one."""
    try:
        import ray
    except ImportError:
        raise UserError(
            "--on ray requires Ray: pip install 'buttress[ray]', or use --on local, or --shard "
            "I/N on several machines"
        ) from None
    address_or_env = address or os.environ.get("RAY_ADDRESS")
    log_options = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=address_or_env or "auto", **log_options)
    except ConnectionError as error:
        if address_or_env not in (None, "auto"):
            raise UserError(
                f"cannot connect to a Ray cluster at {address_or_env}: {error}"
            ) from None
        ray.init(include_dashboard=False, **log_options)
        progress.log("no Ray cluster found; started one on this machine")
    return ray


def run_on_node(job: RunJob, device: str, cpus: float) -> TryResult:
    """Ray task: try one run."""
    import torch

    torch.set_num_threads(max(1, int(cpus)))
    return try_run(job, device=device, progress=SilentProgress())


def _collect(
    ray: Any, reference: Any, index: int, queue: RunQueue, progress: StudyProgress
) -> None:
    try:
        outcome: TryResult = ray.get(reference)
    except ray.exceptions.RayError as error:  # the process or its node is gone
        reason = f"its Ray worker was lost ({type(error).__name__})"
        progress.progress.log(f"{queue.jobs[index].key}: {reason}")
        if queue.record_crash(index, reason):
            progress.finish_job(index)
        return
    record_try(queue, progress, index, outcome)


def _finished_tasks(ray: Any, references: list[Any]) -> list[Any]:
    """Wait for a task; return all that have ended by then."""
    if not references:
        return []
    ready, others = ray.wait(references, timeout=POLL_SECONDS)
    if ready and others:
        ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
    return list(ready)


def _num_tasks(ray: Any, options: RunnerOptions) -> int:
    """Number of runs to submit: what the cluster executes in parallel, and some to follow."""
    resources = ray.cluster_resources()
    capacity = resources.get("CPU", 1.0) / max(options.cpus_per_run, 1e-9)
    if options.gpus_per_run > 0:
        capacity = min(capacity, resources.get("GPU", 0.0) / options.gpus_per_run)
    return max(1, int(capacity)) + max(EXTRA_TASKS, int(0.05 * capacity))


def with_absolute_paths(job: RunJob) -> RunJob:
    init_folder = None if job.init_folder is None else Path(job.init_folder).resolve()
    return replace(job, folder=job.folder.resolve(), init_folder=init_folder)
