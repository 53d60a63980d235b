"""Execute jobs on this machine, in one process or several.

Several processes with one thread each finish small networks sooner than one process with several
threads. A process that dies gives its run to another, which resumes from the last complete file.
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

from buttress.studies.jobs import RunJob
from buttress.studies.runner.progress import StudyProgress
from buttress.studies.runner.queue import FailedJob, RunQueue, TryResult, try_run
from buttress.system.cpu import threads_per_worker
from buttress.system.progress import Progress, ProgressTask

POLL_SECONDS = 0.5  # seconds between checks of waiting runs


def run_jobs(
    jobs: Sequence[RunJob], *, workers: int, device: str = "auto", retry: bool = False,
    progress: Progress,
) -> list[FailedJob]:  # fmt: skip
    """Execute all jobs; failures are returned and do not stop the other jobs.

    A run that another process has is waited for. One that failed before is reported again, or with
    ``retry`` tried again.
    """
    queue = RunQueue(jobs, retry=retry)
    if workers > 1 and len(queue.jobs) > 1:
        return WorkerPool(queue, min(workers, len(queue.jobs)), device, progress).run()
    study_progress = StudyProgress(queue.jobs, progress)
    while queue.unfinished:
        index = queue.next_job()
        if index is None:
            time.sleep(POLL_SECONDS)
            continue
        outcome = try_run(
            queue.jobs[index], device=device, progress=study_progress.job_progress(index)
        )
        record_try(queue, study_progress, index, outcome)
    study_progress.close()
    return queue.failed_jobs()


def record_try(queue: RunQueue, progress: StudyProgress, index: int, result: TryResult) -> None:
    """Record the result of an attempt in the queue and the progress bar."""
    if queue.record_result(index, result):
        progress.finish_job(index, was_done=result.was_done)
    elif result.state == "held" and queue.first_time_locked(index):
        key = queue.jobs[index].key
        progress.progress.log(f"run {key} is locked by {result.message}; waiting for it")


class PipeProgress:
    """Progress of a worker, forwarded to the parent process."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.task_count = pipe, 0

    def add_task(self, description: str, total: float) -> PipeProgressTask:
        self.task_count += 1
        self.pipe.send(("task", (self.task_count, description, total)))
        return PipeProgressTask(self.pipe, self.task_count)

    def log(self, text: str) -> None:
        self.pipe.send(("log", text))


class PipeProgressTask:
    def __init__(self, pipe: Connection, number: int) -> None:
        self.pipe, self.task_id = pipe, number

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.pipe.send(("advance", (self.task_id, amount, note)))

    def resume(self, amount: float) -> None:
        self.pipe.send(("resume", (self.task_id, amount)))

    def close(self) -> None:
        self.pipe.send(("close", self.task_id))


@dataclass(frozen=True)
class WorkerResources:
    """Threads and GPU of a worker."""

    threads: int
    gpu: str | None = None


def split_machine(workers: int) -> list[WorkerResources]:
    """Divide the cores evenly and assign GPUs round-robin."""
    import torch

    threads = threads_per_worker(workers)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    if not torch.cuda.is_available():
        gpus = []
    return [WorkerResources(threads, gpus[i % len(gpus)] if gpus else None) for i in range(workers)]


def _worker_main(pipe: Connection, device: str, resources: WorkerResources) -> None:
    """Worker process: execute jobs from the pipe until it receives None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers ...
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ... which give their locks back ...
    threading.Thread(target=_exit_with_parent, daemon=True).start()  # ... unless it was killed
    if resources.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = resources.gpu
    import torch

    torch.set_num_threads(resources.threads)
    while (job := pipe.recv()) is not None:
        outcome = try_run(job, device=device, progress=PipeProgress(pipe))
        pipe.send(("outcome", outcome))


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@dataclass
class WorkerProcess:
    """A worker process, the pipe to it, and its current run."""

    process: SpawnProcess
    pipe: Any
    resources: WorkerResources
    job_index: int | None = None
    tasks: dict[int, ProgressTask] = field(default_factory=dict)


class WorkerPool:
    def __init__(self, bag: RunQueue, workers: int, device: str, progress: Progress) -> None:
        self.queue, self.device = bag, device
        self.context = multiprocessing.get_context("spawn")
        self.progress = StudyProgress(bag.jobs, progress)
        self.workers = [self._start(part) for part in split_machine(workers)]

    def _start(self, resources: WorkerResources) -> WorkerProcess:
        parent_end, child_end = self.context.Pipe()
        args = (child_end, self.device, resources)
        process = self.context.Process(target=_worker_main, args=args, daemon=True)
        process.start()
        child_end.close()
        return WorkerProcess(process, parent_end, resources)

    def run(self) -> list[FailedJob]:
        try:
            while self.queue.unfinished:
                self._assign_jobs()
                workers_by_pipe = {worker.pipe: worker for worker in self.workers}
                for pipe in wait(list(workers_by_pipe), timeout=POLL_SECONDS):
                    self._handle_message(workers_by_pipe[pipe])
        finally:
            for worker in self.workers:
                worker.process.terminate()
            for worker in self.workers:
                worker.process.join(timeout=5)
                worker.process.kill()
            self.progress.close()
        return self.queue.failed_jobs()

    def _assign_jobs(self) -> None:
        """Assign the next run to every idle worker."""
        for worker in self.workers:
            if worker.job_index is None and (index := self.queue.next_job()) is not None:
                worker.job_index = index
                try:
                    worker.pipe.send(self.queue.jobs[index])
                except OSError:
                    self._restart_worker(worker)

    def _handle_message(self, worker: WorkerProcess) -> None:
        try:
            kind, payload = worker.pipe.recv()
        except (EOFError, OSError):
            self._restart_worker(worker)
            return
        assert worker.job_index is not None
        if kind == "task":
            number, description, total = payload
            worker.tasks[number] = self.progress.job_progress(worker.job_index).add_task(
                description, total
            )
        elif kind == "advance":
            number, amount, note = payload
            worker.tasks[number].advance(amount, note)
        elif kind == "resume":
            number, amount = payload
            worker.tasks[number].resume(amount)
        elif kind == "close":
            worker.tasks.pop(payload).close()
        elif kind == "log":
            self.progress.progress.log(payload)
        else:
            record_try(self.queue, self.progress, worker.job_index, payload)
            self._release(worker)

    def _release(self, worker: WorkerProcess) -> None:
        for task in worker.tasks.values():
            task.close()
        worker.tasks, worker.job_index = {}, None

    def _restart_worker(self, worker: WorkerProcess) -> None:
        """Replace workers that died and put their runs back into the queue."""
        worker.process.join(timeout=5)
        index, code = worker.job_index, worker.process.exitcode
        self._release(worker)
        worker.pipe.close()
        if index is not None:
            key = self.queue.jobs[index].key
            self.progress.progress.log(f"worker process of run {key} died with exit code {code}")
            if self.queue.record_crash(index, f"its worker process died with exit code {code}"):
                self.progress.finish_job(index)
        restarted = self._start(worker.resources)
        worker.process, worker.pipe = restarted.process, restarted.pipe
