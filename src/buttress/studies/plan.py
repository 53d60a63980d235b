"""Remaining cost and status of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from buttress.config import Spec
from buttress.models.cost import FLOPS_PER_MAC, PassCount
from buttress.results.run_spec import RunSpec
from buttress.studies.calibration import calibrate
from buttress.studies.grid import ExpandedStudy, LabelFilter
from buttress.studies.jobs import RunJob, RunStatus, TaskKind, make_jobs, read_statuses
from buttress.studies.speed import DeviceSpec, SpeedModel, fit_speed_model, get_device
from buttress.system.progress import Progress, SilentProgress
from buttress.training.cost import run_model_cost, training_memory

EVALUATION_BATCH = 256  # images that are attacked at once


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
    memory_bytes: float = 0.0  # on its device, about
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
    memory_bytes: float  # of the largest run
    measured_memory_bytes: float = 0.0  # of the largest process of finished tasks; 0: none
    hours: float | None
    estimate_basis: str  # of the hours
    warnings: tuple[str, ...] = ()


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
    """Estimate the remaining passes, FLOPs, memory and hours of a study.

    Hours follow from finished runs below ``root``. One model of each family without a finished run
    is timed here for a moment; with ``device_name`` all are estimated for that device.
    """
    progress = progress or SilentProgress()
    device_spec = None if device_name is None else get_device(device_name)
    statuses = read_statuses(make_jobs(expanded, root, label_filter), progress)
    speed = fit_speed_model(statuses)
    speed.device = device_spec
    specs_by_family: dict[str, list[RunSpec]] = {}
    for run in statuses:
        family = run_model_cost(run.job.spec).family
        if any((family, kind) not in speed.seconds_per_mac for kind in _missing_kinds(run)):
            specs_by_family.setdefault(family, []).append(run.job.spec)
    if device_spec is None and specs_by_family:
        speed.calibrations = calibrate(specs_by_family, root, device, progress)
    return build_plan(expanded, statuses, speed)


def _missing_kinds(run: RunStatus) -> set[TaskKind]:
    return {task.kind for task in run.missing} - {"analysis"}


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
        memory_bytes=max((r.memory_bytes for r in runs), default=0.0),
        measured_memory_bytes=2**20
        * max((u.peak_memory_mb for s in statuses for u in s.usage.values()), default=0.0),
        hours=None if hours is None else hours / 3600,
        estimate_basis=speed.source_text,
        warnings=_memory_warnings(runs, speed.device),
    )


def _memory_warnings(runs: Sequence[PlannedRun], device: DeviceSpec | None) -> tuple[str, ...]:
    if device is None or device.memory_gb is None:
        return ()
    too_large = [run for run in runs if run.memory_bytes > 1e9 * (device.memory_gb or 0)]
    if not too_large:
        return ()
    largest = max(too_large, key=lambda run: run.memory_bytes)
    return (
        f"{len(too_large)} runs need more than the {device.memory_gb:g} GB of {device.name}, "
        f"up to {largest.memory_bytes / 1e9:.3g} GB for {largest.label}; split their batches with "
        "accumulation_steps=N in the recipe",
    )


def plan_run(status: RunStatus, speed: SpeedModel) -> PlannedRun:
    """Remaining cost of one run."""
    job, passes, seconds = status.job, PassCount(), 0.0
    is_timed = True
    for task in status.missing:
        passes += speed.expected_passes(job, task)
        task_seconds = speed.estimate_seconds(job, task)
        seconds, is_timed = seconds + (task_seconds or 0.0), is_timed and task_seconds is not None
    return PlannedRun(
        key=job.key, model=job.spec.model, label=job.label(), seed=job.spec.seed,
        state=status.state, missing_tasks=tuple(t.label for t in status.missing),
        error=status.error, forward_passes=passes.forward,
        backward_passes=passes.backward + passes.weight_backward,
        flops=FLOPS_PER_MAC * passes.macs(run_model_cost(job.spec).macs),
        memory_bytes=_peak_memory(job, _missing_kinds(status)),
        seconds=seconds if is_timed else None,
    )  # fmt: skip


def _peak_memory(job: RunJob, kinds: set[TaskKind]) -> float:
    """Bytes of a run on its device, of training or of an attack on a batch of an evaluation."""
    training = training_memory(job.spec) if "train" in kinds else 0.0
    if "attack" not in kinds:
        return training
    cost = run_model_cost(job.spec)
    images = min(EVALUATION_BATCH, job.test_limit or EVALUATION_BATCH)
    return max(training, 4.0 * (2 * cost.parameters + images * cost.activations))
