"""What is there of a study's runs, told from their files alone."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from buttress.errors import CorruptFile
from buttress.files import read_json
from buttress.progress import Progress, Silent
from buttress.records.evaluation import read_made
from buttress.records.run import Failure, Run
from buttress.study.tasks import Task, tasks_of
from buttress.study.work import Work

State = Literal["done", "failed", "started", "new"]


@dataclass(frozen=True)
class Took:
    """What a finished task took."""

    seconds: float
    forward: float = 0.0  # passes per image
    backward: float = 0.0


@dataclass(frozen=True)
class Found:
    """A run as it is now."""

    work: Work
    tasks: tuple[Task, ...]
    missing: tuple[Task, ...]
    took: Mapping[Path, Took] = field(default_factory=dict)  # by the file of the task
    failure: Failure | None = None
    is_started: bool = False

    @property
    def state(self) -> State:
        if not self.missing:
            return "done"
        if self.failed_at_missing:
            return "failed"
        return "started" if self.is_started else "new"

    @property
    def error(self) -> str:
        """Why the run failed, if it is what this study wants of it that failed."""
        return self.failure.message if self.failure and self.state == "failed" else ""

    @property
    def failed_at_missing(self) -> bool:
        """A run may have failed at a thing that only another study wants of it."""
        if self.failure is None or self.failure.file is None:
            return self.failure is not None
        return self.work.folder / self.failure.file in [task.file for task in self.missing]


def survey(works: Sequence[Work], progress: Progress | None = None) -> list[Found]:
    """The state of every run."""
    bar = (progress or Silent()).task("look at runs", len(works))
    found = []
    for work in works:
        found.append(look_at(work))
        bar.advance()
    bar.close()
    return found


def look_at(work: Work) -> Found:
    tasks = tuple(tasks_of(work))
    if not work.folder.is_dir():
        return Found(work, tasks, tasks)
    took = {task.file: known for task in tasks if (known := _took(task)) is not None}
    run = Run(work.folder)
    return Found(
        work, tasks, tuple(t for t in tasks if t.file not in took), took, run.failure, run.exists
    )


def _took(task: Task) -> Took | None:
    """What a task took if it is done; a record of other images or settings is not it."""
    with contextlib.suppress(CorruptFile, FileNotFoundError, NotADirectoryError):
        if task.kind == "train":
            return Took(float(read_json(task.file).get("seconds", 0.0)))
        if task.kind == "analysis":
            made = read_json(task.file)
            return Took(0.0) if all(made.get(k) == v for k, v in task.made.items()) else None
        rows, made = read_made(task.file)
        if rows == task.images and all(made.get(k) == v for k, v in task.made.items()):
            return Took(*(float(made.get(k, 0.0)) for k in ("seconds", "forward", "backward")))
    return None
