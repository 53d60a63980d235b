"""One try at one run, by whichever process got it: the same on every machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from buttress.errors import ButtressError
from buttress.results.run import Run
from buttress.studies.jobs import RunJob, RunStatus, complete_run, read_status
from buttress.system.locks import (
    LOCK_SUFFIX,
    FileLock,
    LockLostError,
    is_stale,
    read_holder,
    remove_stale_lock,
)
from buttress.system.progress import Progress, ProgressTask


@dataclass(frozen=True)
class TryResult:
    """How a try ended. Held: another process has the run. Waiting: its source is not trained."""

    state: Literal["done", "failed", "held", "waiting"]
    message: str = ""


def lock_path(job: RunJob) -> Path:
    """Beside the folder, which is empty until its run begins."""
    return job.folder.with_name(job.folder.name + LOCK_SUFFIX)


def try_run(job: RunJob, *, device: str, progress: Progress) -> TryResult:
    """Does what is missing of a run, unless another process has it or it failed before."""
    if (earlier := _earlier_result(job)) is not None:
        remove_stale_lock(lock_path(job))
        return earlier
    lock = FileLock(lock_path(job))
    if not lock.acquire():
        return TryResult("held", str(read_holder(lock.path) or "nobody"))
    with lock:
        if (earlier := _earlier_result(job)) is not None:  # another finished it a moment ago
            return earlier
        try:
            complete_run(job, device=device, progress=LockedProgress(progress, lock))
        except LockLostError as error:
            return TryResult("held", str(error))
        except Exception as error:  # whatever it is, the other runs go on
            return record_failure(job, error_text(error))
        _clear_failure(read_status(job))
        return TryResult("done")


def _earlier_result(job: RunJob) -> TryResult | None:
    """How a run ended that need not be tried; None if it must."""
    status = read_status(job)
    if status.state == "done":
        _clear_failure(status)
        return TryResult("done")
    if status.state == "failed":
        return TryResult("failed", status.error)
    if job.init_folder is not None and not (init_run := Run(job.init_folder)).is_trained:
        if (failure := init_run.failure) is not None:
            reason = f"it begins with {job.init_folder.name}, which failed: {failure.message}"
            return TryResult("failed", reason)
        return TryResult("waiting", f"it begins with {job.init_folder.name}")
    return None


def record_failure(job: RunJob, message: str) -> TryResult:
    """Notes it in the run: what is missing first, in the order of the work, was being made."""
    missing = read_status(job).missing
    with contextlib.suppress(OSError):
        Run(job.folder).fail(message, missing[0].file if missing else None)
    return TryResult("failed", message)


def _clear_failure(status: RunStatus) -> None:
    """A failure is over when the file that it was about is there."""
    Run(status.job.folder).mend(task.file for task in status.tasks if task not in status.missing)


def error_text(error: BaseException) -> str:
    return str(error) if isinstance(error, ButtressError) else f"{type(error).__name__}: {error}"


def reset_failure(job: RunJob) -> None:
    """Lets a run that failed be tried again; one that a process has now is left to it."""
    if read_status(job).state != "failed":
        return
    holder = read_holder(lock_path(job))
    if holder is not None and not is_stale(lock_path(job), holder):
        return
    (job.folder / "error.json").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        job.folder.rmdir()  # if nothing else was in it


class LockedProgress:
    """The progress of a run that stops when its lock is lost."""

    def __init__(self, progress: Progress, lock: FileLock) -> None:
        self.progress, self.lock = progress, lock

    def add_task(self, description: str, total: float) -> ProgressTask:
        self.lock.check()
        return LockedProgressTask(self.progress.add_task(description, total), self.lock)

    def log(self, text: str) -> None:
        self.progress.log(text)


class LockedProgressTask:
    def __init__(self, task: ProgressTask, lock: FileLock) -> None:
        self.task, self.lock = task, lock

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.lock.check()
        self.task.advance(amount, note)

    def close(self) -> None:
        self.task.close()


RETRY_SECONDS = 2.0  # seconds until a run that another process has is looked at again
MAX_CRASHES = 3  # processes that one run may take with it


@dataclass(frozen=True)
class FailedJob:
    """A run that did not end, and why."""

    job: RunJob
    message: str


class RunQueue:
    """Runs to be tried, in order; one that is held or waits comes back after a pause."""

    def __init__(self, jobs: Sequence[RunJob], *, retry: bool = False) -> None:
        self.jobs = list({work.key: work for work in jobs}.values())
        self.pending = list(range(len(self.jobs)))
        self.index_of = {work.folder: index for index, work in enumerate(self.jobs)}
        self.unfinished = set(self.pending)
        self.failures: dict[int, str] = {}
        self.crashes: dict[int, int] = {}  # run -> processes that died with it
        self.not_before: dict[int, float] = {}
        self.reported_locked: set[int] = set()
        if retry:
            for work in self.jobs:
                reset_failure(work)

    def next_job(self) -> int | None:
        """The next run to be tried now, if there is one."""
        now = time.monotonic()
        for position, index in enumerate(self.pending):
            if self.not_before.get(index, 0.0) <= now and not self._awaits_init(index):
                return self.pending.pop(position)
        return None

    def _awaits_init(self, index: int) -> bool:
        """Whether the run it begins with is still to come."""
        init_folder = self.jobs[index].init_folder
        return init_folder is not None and self.index_of.get(init_folder, -1) in self.unfinished

    def record_result(self, index: int, result: TryResult) -> bool:
        """Notes how a try ended; whether that was the end of the run."""
        if result.state in ("held", "waiting"):
            self.pending.append(index)
            self.not_before[index] = time.monotonic() + RETRY_SECONDS
            return False
        self.unfinished.discard(index)
        if result.state == "failed":
            self.failures[index] = result.message
        return True

    def record_crash(self, index: int, reason: str) -> bool:
        """A process died with a run: another tries, unless too many have died of it."""
        self.crashes[index] = self.crashes.get(index, 0) + 1
        if self.crashes[index] >= MAX_CRASHES:
            message = f"{reason}, {MAX_CRASHES} times; it may need more memory than there is"
            return self.record_result(index, record_failure(self.jobs[index], message))
        self.pending.insert(0, index)
        return False

    def first_time_locked(self, index: int) -> bool:
        """Whether it is the first time that a run is found held, which is worth a line."""
        is_new = index not in self.reported_locked
        self.reported_locked.add(index)
        return is_new

    def failed_jobs(self) -> list[FailedJob]:
        return [FailedJob(self.jobs[i], self.failures[i]) for i in sorted(self.failures)]


def select_shard(jobs: Sequence[RunJob], number: int, count: int) -> list[RunJob]:
    """Part ``number`` of ``count``; a run and the one it begins with are in the same part."""
    by_folder = {work.folder: work for work in jobs}

    def root(job: RunJob) -> str:
        while job.init_folder is not None and job.init_folder in by_folder:
            job = by_folder[job.init_folder]
        return job.key

    roots = list(dict.fromkeys(root(work) for work in jobs))
    shard_roots = set(roots[number - 1 :: count])
    return [work for work in jobs if root(work) in shard_roots]
