"""Attempts at runs, and the queue of runs of a study."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from buttress.errors import ButtressError
from buttress.results.run import EVAL_FOLDER, Run
from buttress.studies.jobs import RunJob, RunStatus, complete_run, read_status
from buttress.system.cpu import release_freed_memory
from buttress.system.locks import (
    LOCK_SUFFIX,
    FileLock,
    LockedProgress,
    LockLostError,
    is_stale,
    read_holder,
    remove_stale_lock,
)
from buttress.system.progress import Progress


@dataclass(frozen=True)
class TryResult:
    """Result of an attempt. held: locked by another process; waiting: needs initial weights."""

    state: Literal["done", "failed", "held", "waiting"]
    message: str = ""
    was_done: bool = False  # before this attempt


def lock_path(job: RunJob) -> Path:
    """Lock file of a run, beside its folder."""
    return job.folder.with_name(job.folder.name + LOCK_SUFFIX)


def try_run(job: RunJob, *, device: str, progress: Progress) -> TryResult:
    """Complete a run, unless another process has locked it or it failed before."""
    if (earlier := _earlier_result(job)) is not None:
        for path in (lock_path(job), *(job.folder / EVAL_FOLDER).glob(f"*{LOCK_SUFFIX}")):
            remove_stale_lock(path)  # of a process that was killed after its last file
        return earlier
    lock = FileLock(lock_path(job))
    if not lock.acquire():
        return TryResult("held", str(read_holder(lock.path) or "nobody"))
    with lock:
        if (
            earlier := _earlier_result(job)
        ) is not None:  # another process has finished it meanwhile
            return earlier
        try:
            complete_run(job, device=device, progress=LockedProgress(progress, lock))
        except LockLostError as error:
            return TryResult("held", str(error))
        except Exception as error:  # a failure does not stop the other runs
            return record_failure(job, error_text(error))
        finally:  # a worker makes many runs
            release_freed_memory()
        _clear_failure(read_status(job))
        return TryResult("done")


def _earlier_result(job: RunJob) -> TryResult | None:
    """Result of a run that needs no attempt; None if it does."""
    status = read_status(job)
    if status.state == "done":
        _clear_failure(status)
        return TryResult("done", was_done=True)
    if status.state == "failed":
        return TryResult("failed", status.error)
    if job.init_folder is not None and not (init_run := Run(job.init_folder)).is_trained:
        if (failure := init_run.failure) is not None:
            source = job.init_folder.name
            reason = f"its initial weights come from run {source}, which failed: {failure.message}"
            return TryResult("failed", reason)
        return TryResult("waiting", f"needs the weights of run {job.init_folder.name}")
    return None


def record_failure(job: RunJob, message: str) -> TryResult:
    """Record a failure in the run; the first missing file is the one that failed."""
    missing = read_status(job).missing
    with contextlib.suppress(OSError):
        Run(job.folder).fail(message, missing[0].file if missing else None)
    return TryResult("failed", message)


def _clear_failure(status: RunStatus) -> None:
    """Clear a failure if its file exists."""
    Run(status.job.folder).mend(task.file for task in status.tasks if task not in status.missing)


def error_text(error: BaseException) -> str:
    return str(error) if isinstance(error, ButtressError) else f"{type(error).__name__}: {error}"


def reset_failure(job: RunJob) -> None:
    """Clear the failures of runs that are not locked, so that they run again."""
    if read_status(job).state != "failed":
        return
    holder = read_holder(lock_path(job))
    if holder is not None and not is_stale(lock_path(job), holder):
        return
    (job.folder / "error.json").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        job.folder.rmdir()  # if nothing else was in it


RETRY_SECONDS = 2.0  # seconds until a locked run is tried again
MAX_CRASHES = 3  # crashes of the worker process per run


@dataclass(frozen=True)
class FailedJob:
    """A failed run with its error."""

    job: RunJob
    message: str


class RunQueue:
    """Queue of runs; locked and waiting runs come back after a pause.

    Each operation takes constant or logarithmic time, so that thousands of short runs do not slow
    down the process that hands them out.
    """

    def __init__(self, jobs: Sequence[RunJob], *, retry: bool = False) -> None:
        self.jobs = list({work.key: work for work in jobs}.values())
        self.unfinished = set(range(len(self.jobs)))
        self.ready: deque[int] = deque()
        self.paused: list[tuple[float, int]] = []  # heap of times and runs
        self.dependents: dict[int, list[int]] = {}  # run -> runs that start from its weights
        self.failures: dict[int, str] = {}
        self.crashes: dict[int, int] = {}  # run -> processes that died with it
        self.reported_locked: set[int] = set()
        index_of = {work.folder: index for index, work in enumerate(self.jobs)}
        for index, work in enumerate(self.jobs):
            init_index = None if work.init_folder is None else index_of.get(work.init_folder)
            if init_index is None:
                self.ready.append(index)
            else:
                self.dependents.setdefault(init_index, []).append(index)
        if retry:
            for work in self.jobs:
                reset_failure(work)

    def next_job(self) -> int | None:
        """Next run that can be tried now, if any."""
        now = time.monotonic()
        while self.paused and self.paused[0][0] <= now:
            self.ready.append(heapq.heappop(self.paused)[1])
        return self.ready.popleft() if self.ready else None

    def record_result(self, index: int, result: TryResult) -> bool:
        """Record the result of an attempt; return whether the run has ended."""
        if result.state in ("held", "waiting"):
            heapq.heappush(self.paused, (time.monotonic() + RETRY_SECONDS, index))
            return False
        self.unfinished.discard(index)
        self.ready.extend(self.dependents.pop(index, ()))
        if result.state == "failed":
            self.failures[index] = result.message
        return True

    def record_crash(self, index: int, reason: str) -> bool:
        """Record a crash; the run is tried again, up to a maximum number of crashes."""
        self.crashes[index] = self.crashes.get(index, 0) + 1
        if self.crashes[index] >= MAX_CRASHES:
            message = f"{reason} ({MAX_CRASHES} attempts); the machine may have run out of memory"
            return self.record_result(index, record_failure(self.jobs[index], message))
        self.ready.appendleft(index)
        return False

    def first_time_locked(self, index: int) -> bool:
        """Whether a run is found locked for the first time, to log it once."""
        is_new = index not in self.reported_locked
        self.reported_locked.add(index)
        return is_new

    def failed_jobs(self) -> list[FailedJob]:
        return [FailedJob(self.jobs[i], self.failures[i]) for i in sorted(self.failures)]


def select_shard(jobs: Sequence[RunJob], number: int, count: int) -> list[RunJob]:
    """Select shard ``number`` of ``count``; runs that share weights are in the same shard."""
    by_folder = {work.folder: work for work in jobs}

    def root(job: RunJob) -> str:
        while job.init_folder is not None and job.init_folder in by_folder:
            job = by_folder[job.init_folder]
        return job.key

    if count == 1:
        return list(jobs)

    roots = list(dict.fromkeys(root(work) for work in jobs))
    shard_roots = set(roots[number - 1 :: count])
    return [work for work in jobs if root(work) in shard_roots]
