"""Remaining cost and status of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from buttress.config import Spec
from buttress.studies.grid import ExpandedStudy, LabelFilter
from buttress.studies.jobs import RunStatus, macs_of, make_jobs, read_statuses
from buttress.studies.speed import SpeedModel, fit_speed_model, get_device, time_models
from buttress.system.progress import Progress, SilentProgress


class PlannedRun(Spec):
    """One run and its remaining cost."""

    key: str
    model: str
    label: str
    seed: int
    state: Literal["done", "failed", "started", "new"]
    missing_tasks: tuple[str, ...] = ()
    error: str = ""
    forward_passes: float = 0.0  # of single images
    backward_passes: float = 0.0
    flops: float = 0.0
    seconds: float | None = None  # None: no timing is available


class StudyPlan(Spec):
    """All runs of a study, and the total remaining cost."""

    study: str
    scale: str
    runs: tuple[PlannedRun, ...]
    runs_by_state: dict[str, int]
    forward_passes: float
    backward_passes: float
    flops: float
    hours: float | None
    estimate_basis: str  # of the hours


class ActiveRun(Spec):
    """A run that is locked by a process."""

    key: str
    label: str
    host: str
    pid: int
    started_at: str
    epochs_done: int
    epochs_total: int
    tasks_done: int  # trainings, evaluations and analyses
    is_stale: bool  # its process has exited


class StudyStatus(Spec):
    """Status of a study."""

    plan: StudyPlan
    active_runs: tuple[ActiveRun, ...]
    seconds_left: float | None  # with the current number of workers


def plan_study(
    expanded: ExpandedStudy,
    root: Path,
    *,
    device: str = "auto",
    device_name: str | None = None,
    label_filter: LabelFilter | None = None,
    progress: Progress | None = None,
) -> StudyPlan:
    """Estimate the remaining passes, FLOPs and hours of a study.

    Hours are learnt from finished runs below ``root``; models without one are timed here, or with
    ``device_name`` all are estimated for that device.
    """
    progress = progress or SilentProgress()
    device_spec = None if device_name is None else get_device(device_name)
    statuses = read_statuses(make_jobs(expanded, root, label_filter), progress)
    speed = fit_speed_model(statuses)
    speed.device = device_spec
    unfinished = [run for run in statuses if any(t.kind != "analysis" for t in run.missing)]
    if device_spec is None and unfinished:
        time_models(speed, [run.job.spec for run in unfinished], root, device, progress)
    return build_plan(expanded, statuses, speed)


def build_plan(
    expanded: ExpandedStudy, statuses: Sequence[RunStatus], speed: SpeedModel
) -> StudyPlan:
    runs = tuple(plan_run(run, speed) for run in statuses)
    hours = None if any(r.seconds is None for r in runs) else sum(r.seconds or 0 for r in runs)
    states = [run.state for run in runs]
    return StudyPlan(
        study=expanded.name,
        scale=expanded.scale,
        runs=runs,
        runs_by_state={
            state: states.count(state) for state in ("done", "started", "failed", "new")
        },
        forward_passes=sum(r.forward_passes for r in runs),
        backward_passes=sum(r.backward_passes for r in runs),
        flops=sum(r.flops for r in runs),
        hours=None if hours is None else hours / 3600,
        estimate_basis=speed.source_text,
    )


def plan_run(status: RunStatus, speed: SpeedModel) -> PlannedRun:
    """Remaining cost of one run."""
    work, macs = status.job, 0
    forward = backward = flops = 0.0
    seconds: float | None = 0.0
    for task in status.missing:
        if task.kind == "analysis":
            continue
        macs = macs or macs_of(work.spec)
        expected = speed.expected_task(work, task)
        forward += expected.forward_passes
        backward += expected.backward_passes + expected.weight_backward_passes
        flops += 2 * expected.macs(macs)
        task_seconds = speed.estimate_seconds(work, task)
        seconds = None if task_seconds is None or seconds is None else seconds + task_seconds
    return PlannedRun(
        key=work.key, model=work.spec.model, label=work.label(), seed=work.spec.seed,
        state=status.state, missing_tasks=tuple(t.label for t in status.missing),
        error=status.error, forward_passes=forward, backward_passes=backward, flops=flops,
        seconds=seconds,
    )  # fmt: skip
