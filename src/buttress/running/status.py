"""What a study is doing now, told from its files: no process is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from buttress.progress import Progress
from buttress.records.plan import Active, Status
from buttress.running.attempt import lock_file
from buttress.running.lock import is_stale, read_holder
from buttress.study.pace import learn
from buttress.study.plan import make_plan, works_of
from buttress.study.scales import Scale
from buttress.study.spec import StudySpec
from buttress.study.survey import Found, survey


def status_of(
    study: StudySpec, scale: Scale, root: Path, *, progress: Progress | None = None
) -> Status:
    """Counts, who has which run, and how long the rest takes at the pace of what is finished."""
    found = survey(works_of(study, scale, root), progress)
    plan = make_plan(study.name, scale, found, learn(found))
    active = active_of(found)
    at_work = sum(not run.is_stale for run in active)
    left = None
    if plan.hours is not None:
        left = 3600 * plan.hours / max(at_work, 1)
    return Status(plan=plan, active=active, seconds_left=left)


def active_of(found: Sequence[Found]) -> tuple[Active, ...]:
    """The runs with a lock."""
    return tuple(active for run in found if (active := _active(run)) is not None)


def _active(run: Found) -> Active | None:
    path = lock_file(run.work)
    holder = read_holder(path)
    if holder is None:
        return None
    return Active(
        key=run.work.key, label=run.work.label(), host=holder.host, pid=holder.pid,
        since=holder.since, epochs=_lines(run.work.folder / "train.jsonl"),
        of=run.work.spec.recipe.epochs, tasks=len(run.tasks) - len(run.missing),
        is_stale=is_stale(path, holder),
    )  # fmt: skip


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0
