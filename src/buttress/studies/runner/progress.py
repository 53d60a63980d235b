"""One progress bar for all runs, advanced by the tasks of each run."""

from __future__ import annotations

from collections.abc import Sequence

from buttress.studies.jobs import RunJob, tasks_of_job
from buttress.studies.speed import SpeedModel
from buttress.system.progress import Progress, ProgressTask
from buttress.training.cost import run_model_cost


def progress_units(job: RunJob) -> dict[str, float]:
    """Expected MACs of each task of a run, by its label."""
    speed, macs = SpeedModel(), run_model_cost(job.spec).macs
    units: dict[str, float] = {}
    for task in tasks_of_job(job):
        task_macs = speed.expected_passes(job, task).macs(macs)
        units[task.label] = units.get(task.label, 0.0) + task_macs
    return units


class StudyProgress:
    """The progress bar of a study, and the remaining part of each run."""

    def __init__(self, jobs: Sequence[RunJob], progress: Progress) -> None:
        self.jobs, self.progress = jobs, progress
        self.units = [progress_units(work) for work in jobs]
        self.remaining = [dict(units) for units in self.units]
        total = sum(sum(units.values()) for units in self.remaining)
        self.bar = progress.add_task(f"all {len(jobs)} runs", total)

    def job_progress(self, index: int) -> JobProgress:
        return JobProgress(self, index)

    def advance_part(
        self, index: int, label: str, fraction: float, *, was_done: bool = False
    ) -> None:
        """Advance the bar by a fraction of one task of a run."""
        units = self.remaining[index]
        step = min(units.get(label, 0.0), fraction * self.units[index].get(label, 0.0))
        if step > 0:
            units[label] -= step
            (self.bar.resume if was_done else self.bar.advance)(step)

    def finish_job(self, index: int, *, was_done: bool = False) -> None:
        """Count what is left of a run; tasks that a run in progress skipped were done before."""
        rest, all_units = (sum(u[index].values()) for u in (self.remaining, self.units))
        (self.bar.resume if was_done or rest < all_units else self.bar.advance)(rest)
        self.remaining[index] = {}

    def close(self) -> None:
        self.bar.close()


class JobProgress:
    """Progress of one run: its own bar, and its part of the study."""

    def __init__(self, study: StudyProgress, index: int) -> None:
        self.study, self.index = study, index

    def add_task(self, description: str, total: float) -> ProgressTask:
        label = f"{self.study.jobs[self.index].label()}: {description}"
        task = self.study.progress.add_task(label, total)
        return JobProgressTask(self, task, description, max(total, 1e-9))

    def log(self, text: str) -> None:
        self.study.progress.log(text)


class JobProgressTask:
    def __init__(self, job: JobProgress, task: ProgressTask, kind: str, total: float) -> None:
        self.job, self.task, self.label, self.total = job, task, kind, total

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.task.advance(amount, note)
        if amount:
            self.job.study.advance_part(self.job.index, self.label, amount / self.total)

    def resume(self, amount: float) -> None:
        self.task.resume(amount)
        share = amount / self.total
        self.job.study.advance_part(self.job.index, self.label, share, was_done=True)

    def close(self) -> None:
        self.task.close()
