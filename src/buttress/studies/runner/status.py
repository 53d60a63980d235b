"""Status of a study, read from its files and locks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from buttress.studies.grid import ExpandedStudy
from buttress.studies.jobs import RunStatus, make_jobs, read_statuses
from buttress.studies.plan import ActiveRun, StudyStatus, build_plan
from buttress.studies.runner.queue import lock_path
from buttress.studies.speed import fit_speed_model
from buttress.system.locks import is_stale, read_holder
from buttress.system.progress import Progress


def read_study_status(
    expanded: ExpandedStudy, root: Path, *, progress: Progress | None = None
) -> StudyStatus:
    """Read counts, locked runs and the estimated remaining time."""
    statuses = read_statuses(make_jobs(expanded, root), progress)
    plan = build_plan(expanded, statuses, fit_speed_model(statuses))
    active = active_runs(statuses)
    active_workers = sum(not run.is_stale for run in active)
    seconds_left = None
    if plan.hours is not None:
        seconds_left = 3600 * plan.hours / max(active_workers, 1)
    return StudyStatus(plan=plan, active_runs=active, seconds_left=seconds_left)


def active_runs(statuses: Sequence[RunStatus]) -> tuple[ActiveRun, ...]:
    """Runs that are locked by a process."""
    return tuple(active for run in statuses if (active := _active_run(run)) is not None)


def _active_run(run: RunStatus) -> ActiveRun | None:
    path = lock_path(run.job)
    holder = read_holder(path)
    if holder is None:
        return None
    return ActiveRun(
        key=run.job.key, label=run.job.label(), host=holder.host, pid=holder.pid,
        started_at=holder.since, epochs_done=_count_lines(run.job.folder / "train.jsonl"),
        epochs_total=run.job.spec.recipe.epochs, tasks_done=len(run.tasks) - len(run.missing),
        is_stale=is_stale(path, holder),
    )  # fmt: skip


def _count_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0
