"""One try at one run, by whichever process got it: the same on every machine."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from buttress.errors import ButtressError
from buttress.progress import Progress, Task
from buttress.records.run import Run
from buttress.running.lock import SUFFIX, Lock, Lost, clear, is_stale, read_holder
from buttress.study.survey import Found, look_at
from buttress.study.work import Work, complete


@dataclass(frozen=True)
class Outcome:
    """How a try ended. Held: another process has the run. Waiting: its source is not trained."""

    word: Literal["done", "failed", "held", "waiting"]
    message: str = ""


def lock_file(work: Work) -> Path:
    """Beside the folder, which is empty until its run begins."""
    return work.folder.with_name(work.folder.name + SUFFIX)


def attempt(work: Work, *, device: str, progress: Progress) -> Outcome:
    """Does what is missing of a run, unless another process has it or it failed before."""
    if (known := _known(work)) is not None:
        clear(lock_file(work))
        return known
    lock = Lock(lock_file(work))
    if not lock.acquire():
        return Outcome("held", str(read_holder(lock.path) or "nobody"))
    with lock:
        if (known := _known(work)) is not None:  # another finished it a moment ago
            return known
        try:
            complete(work, device=device, progress=Guarded(progress, lock))
        except Lost as error:
            return Outcome("held", str(error))
        except Exception as error:  # whatever it is, the other runs go on
            return failed(work, explain(error))
        _mend(look_at(work))
        return Outcome("done")


def _known(work: Work) -> Outcome | None:
    """How a run ended that need not be tried; None if it must."""
    found = look_at(work)
    if found.state == "done":
        _mend(found)
        return Outcome("done")
    if found.state == "failed":
        return Outcome("failed", found.error)
    if work.source is not None and not (source := Run(work.source)).is_trained:
        if (failure := source.failure) is not None:
            reason = f"it begins with {work.source.name}, which failed: {failure.message}"
            return Outcome("failed", reason)
        return Outcome("waiting", f"it begins with {work.source.name}")
    return None


def failed(work: Work, message: str) -> Outcome:
    """Notes it in the run: what is missing first, in the order of the work, was being made."""
    missing = look_at(work).missing
    with contextlib.suppress(OSError):
        Run(work.folder).fail(message, missing[0].file if missing else None)
    return Outcome("failed", message)


def _mend(found: Found) -> None:
    """A failure is over when the file that it was about is there."""
    Run(found.work.folder).mend(task.file for task in found.tasks if task not in found.missing)


def explain(error: BaseException) -> str:
    return str(error) if isinstance(error, ButtressError) else f"{type(error).__name__}: {error}"


def forget_failure(work: Work) -> None:
    """Lets a run that failed be tried again; one that a process has now is left to it."""
    if look_at(work).state != "failed":
        return
    holder = read_holder(lock_file(work))
    if holder is not None and not is_stale(lock_file(work), holder):
        return
    (work.folder / "error.json").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        work.folder.rmdir()  # if nothing else was in it


class Guarded:
    """The progress of a run that stops when its lock is lost."""

    def __init__(self, progress: Progress, lock: Lock) -> None:
        self.progress, self.lock = progress, lock

    def task(self, description: str, total: float) -> Task:
        self.lock.check()
        return GuardedTask(self.progress.task(description, total), self.lock)

    def log(self, text: str) -> None:
        self.progress.log(text)


class GuardedTask:
    def __init__(self, task: Task, lock: Lock) -> None:
        self.shown, self.lock = task, lock

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.lock.check()
        self.shown.advance(amount, note)

    def close(self) -> None:
        self.shown.close()
