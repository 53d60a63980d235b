"""Runs the work of a study on this machine, in one process or several.

Several processes with one thread each finish small networks sooner than one process with several
threads. A process that dies takes its run with it, not the others.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from typing import Any

from buttress.errors import ButtressError
from buttress.progress import Progress, Task
from buttress.study.work import Work, complete


@dataclass(frozen=True)
class Failure:
    """A run that did not end, and why."""

    work: Work
    message: str


def run_all(
    works: Sequence[Work], *, workers: int, device: str = "auto", progress: Progress
) -> list[Failure]:
    """Completes every run; a run that fails is reported at the end and does not stop the others."""
    if workers > 1 and len(works) > 1:
        return Pool(works, min(workers, len(works)), device, progress).run()
    whole = Whole(works, progress)
    failures = []
    for index, work in enumerate(works):
        try:
            complete(work, device=device, progress=whole.of(index))
        except (ButtressError, RuntimeError, OSError) as error:
            failures.append(Failure(work, explain(error)))
        whole.done(index)
    whole.close()
    return failures


def explain(error: BaseException) -> str:
    return str(error) if isinstance(error, ButtressError) else f"{type(error).__name__}: {error}"


class Whole:
    """One bar for all runs, moved by the parts that each run reports."""

    def __init__(self, works: Sequence[Work], progress: Progress) -> None:
        self.works, self.progress = works, progress
        self.units = [work.units() for work in works]
        self.left = [dict(units) for units in self.units]
        total = sum(sum(units.values()) for units in self.left)
        self.bar = progress.task(f"all {len(works)} runs", total)

    def of(self, index: int) -> Share:
        return Share(self, index)

    def part(self, index: int, kind: str, share: float) -> None:
        """Moves the bar by a share of one kind of a run's work."""
        units = self.left[index]
        step = min(units.get(kind, 0.0), share * self.units[index].get(kind, 0.0))
        if step > 0:
            units[kind] -= step
            self.bar.advance(step)

    def done(self, index: int) -> None:
        self.bar.advance(sum(self.left[index].values()))
        self.left[index] = {}

    def close(self) -> None:
        self.bar.close()


class Share:
    """The progress of one run: its own bar, and its part of the whole."""

    def __init__(self, whole: Whole, index: int) -> None:
        self.whole, self.index = whole, index

    def task(self, description: str, total: float) -> Task:
        label = f"{self.whole.works[self.index].label()}: {description}"
        shown = self.whole.progress.task(label, total)
        return SharedTask(self, shown, description, max(total, 1e-9))

    def log(self, text: str) -> None:
        self.whole.progress.log(text)


class SharedTask:
    def __init__(self, share: Share, shown: Task, kind: str, total: float) -> None:
        self.share, self.shown, self.kind, self.total = share, shown, kind, total

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.shown.advance(amount, note)
        if amount:
            self.share.whole.part(self.share.index, self.kind, amount / self.total)

    def close(self) -> None:
        self.shown.close()


class Sender:
    """The progress of a worker: everything is told to the parent."""

    def __init__(self, events: Any, index: int) -> None:
        self.events, self.index, self.tasks = events, index, 0

    def task(self, description: str, total: float) -> SentTask:
        self.tasks += 1
        self.events.put(("task", self.index, (self.tasks, description, total)))
        return SentTask(self, self.tasks)

    def log(self, text: str) -> None:
        self.events.put(("log", self.index, text))


class SentTask:
    def __init__(self, sender: Sender, number: int) -> None:
        self.sender, self.number = sender, number

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.sender.events.put(("advance", self.sender.index, (self.number, amount, note)))

    def close(self) -> None:
        self.sender.events.put(("close", self.sender.index, self.number))


def _worker(works: Sequence[Work], jobs: Any, events: Any, device: str, threads: int) -> None:
    """A worker process: takes runs until none is left."""
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers ...
    threading.Thread(target=_end_with_parent, daemon=True).start()  # ... unless it was killed
    torch.set_num_threads(threads)
    while (index := jobs.get()) is not None:
        events.put(("start", index, os.getpid()))
        try:
            complete(works[index], device=device, progress=Sender(events, index))
        except Exception as error:  # whatever it is, the other runs go on
            events.put(("failed", index, explain(error)))
        else:
            events.put(("done", index, None))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Pool:
    """Worker processes, the runs they have, and what they say."""

    def __init__(
        self, works: Sequence[Work], workers: int, device: str, progress: Progress
    ) -> None:
        self.works, self.device = works, device
        self.context = multiprocessing.get_context("spawn")
        self.jobs, self.events = self.context.Queue(), self.context.Queue()
        self.threads = max(1, (os.cpu_count() or 1) // workers)
        self.whole = Whole(works, progress)
        self.open = set(range(len(works)))
        self.failures: dict[int, str] = {}
        self.busy: dict[int, int] = {}  # process id -> run
        self.tasks: dict[tuple[int, int], Task] = {}
        for index in range(len(works)):
            self.jobs.put(index)
        for _ in range(workers):
            self.jobs.put(None)
        self.processes = [self._start() for _ in range(workers)]

    def _start(self) -> SpawnProcess:
        args = (self.works, self.jobs, self.events, self.device, self.threads)
        process = self.context.Process(target=_worker, args=args, daemon=True)
        process.start()
        return process

    def run(self) -> list[Failure]:
        try:
            while self.open:
                try:
                    self._hear(*self.events.get(timeout=0.5))
                except queue.Empty:
                    self._look_for_dead()
        finally:
            for process in self.processes:
                process.terminate()
            for process in self.processes:
                process.join(timeout=5)
            self.whole.close()
        return [Failure(self.works[i], self.failures[i]) for i in sorted(self.failures)]

    def _hear(self, what: str, index: int, told: Any) -> None:
        if what == "start":
            self.busy[told] = index
        elif what == "task":
            number, description, total = told
            self.tasks[index, number] = self.whole.of(index).task(description, total)
        elif what == "advance":
            number, amount, note = told
            self.tasks[index, number].advance(amount, note)
        elif what == "close":
            self.tasks.pop((index, told)).close()
        elif what == "log":
            self.whole.progress.log(told)
        else:
            self._end(index, told if what == "failed" else None)

    def _end(self, index: int, message: str | None) -> None:
        self.open.discard(index)
        if message is not None:
            self.failures[index] = message
        for key in [k for k in self.tasks if k[0] == index]:
            self.tasks.pop(key).close()
        self.whole.done(index)

    def _look_for_dead(self) -> None:
        """A worker that was killed gives its run up; another takes its place."""
        for place, process in enumerate(self.processes):
            index = self.busy.get(process.pid or -1)
            if process.is_alive() or process.exitcode == 0:
                continue
            if index is not None and index in self.open:
                self._end(index, f"its process ended with code {process.exitcode}; run it again")
            if self.open:
                self.processes[place] = self._start()
