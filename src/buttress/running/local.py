"""Runs the work of a study on this machine, in one process or several.

Several processes with one thread each finish small networks sooner than one process with several
threads. A process that dies gives its run to another, which goes on from the last whole file.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from buttress.cores import share_of_cores
from buttress.progress import Progress, Task
from buttress.running.attempt import Outcome, attempt
from buttress.running.bag import Bag, Failure
from buttress.running.whole import Whole
from buttress.study.work import Work

LOOK = 0.5  # seconds between looks at what waits


def run_all(
    works: Sequence[Work], *, workers: int, device: str = "auto", retry: bool = False,
    progress: Progress,
) -> list[Failure]:  # fmt: skip
    """Completes every run; a run that fails is reported at the end and does not stop the others.

    A run that another process has is waited for. One that failed before is reported again, or with
    ``retry`` tried again.
    """
    bag = Bag(works, retry=retry)
    if workers > 1 and len(bag.works) > 1:
        return Pool(bag, min(workers, len(bag.works)), device, progress).run()
    whole = Whole(bag.works, progress)
    while bag.open:
        index = bag.take()
        if index is None:
            time.sleep(LOOK)
            continue
        outcome = attempt(bag.works[index], device=device, progress=whole.of(index))
        note(bag, whole, index, outcome)
    whole.close()
    return bag.failed()


def note(bag: Bag, whole: Whole, index: int, outcome: Outcome) -> None:
    """Tells the bag and the bar how a try ended."""
    if bag.settle(index, outcome):
        whole.done(index)
    elif outcome.word == "held" and bag.is_news(index):
        whole.progress.log(f"{bag.works[index].key} is with {outcome.message}; waiting for it")


class Sender:
    """The progress of a worker: everything is told to the parent."""

    def __init__(self, line: Connection) -> None:
        self.line, self.tasks = line, 0

    def task(self, description: str, total: float) -> SentTask:
        self.tasks += 1
        self.line.send(("task", (self.tasks, description, total)))
        return SentTask(self.line, self.tasks)

    def log(self, text: str) -> None:
        self.line.send(("log", text))


class SentTask:
    def __init__(self, line: Connection, number: int) -> None:
        self.line, self.number = line, number

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.line.send(("advance", (self.number, amount, note)))

    def close(self) -> None:
        self.line.send(("close", self.number))


@dataclass(frozen=True)
class Part:
    """A worker's part of the machine."""

    threads: int
    gpu: str | None = None


def parts_of_machine(workers: int) -> list[Part]:
    """Cores divided evenly, GPUs dealt round."""
    import torch

    threads = share_of_cores(workers)
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
    if not torch.cuda.is_available():
        gpus = []
    return [Part(threads, gpus[i % len(gpus)] if gpus else None) for i in range(workers)]


def _worker(works: Sequence[Work], line: Connection, device: str, part: Part) -> None:
    """A worker process: does what it is told until it is told None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers ...
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ... which give their locks back ...
    threading.Thread(target=_end_with_parent, daemon=True).start()  # ... unless it was killed
    if part.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = part.gpu
    import torch

    torch.set_num_threads(part.threads)
    while (index := line.recv()) is not None:
        outcome = attempt(works[index], device=device, progress=Sender(line))
        line.send(("outcome", outcome))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@dataclass
class Worker:
    """A process, the line to it, and the run it has. No other process shares the line."""

    process: SpawnProcess
    line: Any
    part: Part
    index: int | None = None
    tasks: dict[int, Task] = field(default_factory=dict)


class Pool:
    """Worker processes, the runs they have, and what they say."""

    def __init__(self, bag: Bag, workers: int, device: str, progress: Progress) -> None:
        self.bag, self.device = bag, device
        self.context = multiprocessing.get_context("spawn")
        self.whole = Whole(bag.works, progress)
        self.workers = [self._start(part) for part in parts_of_machine(workers)]

    def _start(self, part: Part) -> Worker:
        here, there = self.context.Pipe()
        args = (self.bag.works, there, self.device, part)
        process = self.context.Process(target=_worker, args=args, daemon=True)
        process.start()
        there.close()
        return Worker(process, here, part)

    def run(self) -> list[Failure]:
        try:
            while self.bag.open:
                self._give()
                lines = {worker.line: worker for worker in self.workers}
                for line in wait(list(lines), timeout=LOOK):
                    self._hear(lines[line])
        finally:
            for worker in self.workers:
                worker.process.terminate()
            for worker in self.workers:
                worker.process.join(timeout=5)
                worker.process.kill()
            self.whole.close()
        return self.bag.failed()

    def _give(self) -> None:
        """Gives every idle worker the next run."""
        for worker in self.workers:
            if worker.index is None and (index := self.bag.take()) is not None:
                worker.index = index
                try:
                    worker.line.send(index)
                except OSError:
                    self._replace(worker)

    def _hear(self, worker: Worker) -> None:
        try:
            what, told = worker.line.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return
        assert worker.index is not None
        if what == "task":
            number, description, total = told
            worker.tasks[number] = self.whole.of(worker.index).task(description, total)
        elif what == "advance":
            number, amount, words = told
            worker.tasks[number].advance(amount, words)
        elif what == "close":
            worker.tasks.pop(told).close()
        elif what == "log":
            self.whole.progress.log(told)
        else:
            note(self.bag, self.whole, worker.index, told)
            self._free(worker)

    def _free(self, worker: Worker) -> None:
        for task in worker.tasks.values():
            task.close()
        worker.tasks, worker.index = {}, None

    def _replace(self, worker: Worker) -> None:
        """A worker that was killed gives its run up; another takes its place."""
        worker.process.join(timeout=5)
        index, code = worker.index, worker.process.exitcode
        self._free(worker)
        worker.line.close()
        if index is not None:
            self.whole.progress.log(f"the process of {self.bag.works[index].key} died ({code})")
            if self.bag.lose(index, f"its process ended with code {code}"):
                self.whole.done(index)
        fresh = self._start(worker.part)
        worker.process, worker.line = fresh.process, fresh.line
