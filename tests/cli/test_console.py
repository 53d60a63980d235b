"""Progress on the console: the time left follows from what this process did."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.progress import Progress as Bars

from buttress.cli.console import _BarProgress, _LineProgress
from buttress.studies.runner.progress import StudyProgress
from buttress.system.progress import Progress, ProgressTask


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that a test sets."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr("buttress.cli.console.time.monotonic", lambda: now.seconds)
    return now


def test_time_left_does_not_count_what_was_done_before(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    task = _LineProgress().add_task("train", 100)
    task.resume(40)
    clock.seconds = 10.0
    task.advance(10)
    clock.seconds = 20.0
    task.resume(30)
    task.advance(10, "epoch 8")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["train: 50%, about 50 s left", "train: 90%, about 10 s left  epoch 8"]


def test_time_left_is_unknown_before_the_first_step(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    task = _LineProgress().add_task("train", 100)
    task.resume(40)
    clock.seconds = 10.0
    task.advance(0)
    assert capsys.readouterr().err == "train: 40%, time left unknown\n"


def test_bars_forget_the_speed_of_what_was_done_before() -> None:
    now = SimpleNamespace(seconds=0.0)
    bars = Bars(get_time=lambda: now.seconds)
    task = _BarProgress(bars).add_task("train", 100)
    task.resume(40)
    for _ in range(3):
        now.seconds += 10.0
        task.advance(10)
    (bar,) = bars.tasks
    assert bar.completed == 70
    assert bar.time_remaining == pytest.approx(30, abs=10)


class Counted:
    """A task that counts what was done now and before."""

    def __init__(self) -> None:
        self.advanced, self.resumed = 0.0, 0.0

    def advance(self, amount: float = 1.0, note: str = "") -> None:
        self.advanced += amount

    def resume(self, amount: float) -> None:
        self.resumed += amount

    def close(self) -> None:
        pass


class CountedProgress(Progress):
    def __init__(self) -> None:
        self.tasks: dict[str, Counted] = {}

    def add_task(self, description: str, total: float) -> ProgressTask:
        self.tasks[description] = Counted()
        return self.tasks[description]

    def log(self, text: str) -> None:
        pass


def test_a_study_knows_which_runs_were_done_before(monkeypatch: pytest.MonkeyPatch) -> None:
    units = {"train": 60.0, "fast: clean": 40.0}
    monkeypatch.setattr("buttress.studies.runner.progress.progress_units", lambda job: dict(units))
    progress, job = CountedProgress(), SimpleNamespace(label=lambda: "a run")
    study = StudyProgress([job] * 3, progress)  # type: ignore[list-item]
    study.finish_job(0, was_done=True)
    study.finish_job(1)  # on another machine, which reports the end only
    resumed = study.job_progress(2).add_task("train", 10)
    resumed.resume(5)
    resumed.advance(5)
    study.finish_job(2)  # its evaluation was done before
    bar = progress.tasks["all 3 runs"]
    assert (bar.advanced, bar.resumed) == (100 + 30, 100 + 30 + 40)
