"""What a study will take, said before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from buttress.progress import Progress, Silent
from buttress.records.plan import Plan, Planned
from buttress.study.calibrate import calibrate
from buttress.study.cells import cells_of
from buttress.study.devices import device_named
from buttress.study.only import Only, chosen
from buttress.study.pace import Pace, learn
from buttress.study.scales import Scale
from buttress.study.spec import StudySpec
from buttress.study.survey import Found, survey
from buttress.study.tasks import macs_of
from buttress.study.work import Work, work_of


def works_of(study: StudySpec, scale: Scale, root: Path, only: Only | None = None) -> list[Work]:
    """The runs of a study or of a part of it, each once; mistakes in it are found here."""
    cells = chosen(cells_of(study, scale), only or {})
    works = work_of(study.scaled(scale), cells, root)
    return list({work.key: work for work in works}.values())


def plan_of(
    study: StudySpec,
    scale: Scale,
    root: Path,
    *,
    device: str = "auto",
    device_name: str | None = None,
    only: Only | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Runs, passes, FLOPs and hours of what is done and what is missing.

    Hours are learnt from finished runs below ``root``; models without one are timed here, or with
    ``device_name`` all are estimated for that device.
    """
    progress = progress or Silent()
    named = None if device_name is None else device_named(device_name)
    found = survey(works_of(study, scale, root, only), progress)
    pace = learn(found)
    pace.device = named
    left = [run for run in found if any(t.kind != "analysis" for t in run.missing)]
    if named is None and left:
        calibrate(pace, [run.work.spec for run in left], root, device, progress)
    return make_plan(study.name, scale, found, pace)


def make_plan(study: str, scale: Scale, found: Sequence[Found], pace: Pace) -> Plan:
    runs = tuple(planned(run, pace) for run in found)
    hours = None if any(r.seconds is None for r in runs) else sum(r.seconds or 0 for r in runs)
    states = [run.state for run in runs]
    return Plan(
        study=study,
        scale=scale,
        runs=runs,
        counts={word: states.count(word) for word in ("done", "started", "failed", "new")},
        forward=sum(r.forward for r in runs),
        backward=sum(r.backward for r in runs),
        flops=sum(r.flops for r in runs),
        hours=None if hours is None else hours / 3600,
        known_from=pace.source,
    )


def planned(found: Found, pace: Pace) -> Planned:
    """What one run still takes."""
    work, macs = found.work, 0
    forward = backward = flops = 0.0
    seconds: float | None = 0.0
    for task in found.missing:
        if task.kind == "analysis":
            continue
        macs = macs or macs_of(work.spec)
        expected = pace.expected(work, task)
        forward += expected.forward
        backward += expected.backward + expected.learning
        flops += 2 * expected.macs(macs)
        took = pace.seconds(work, task)
        seconds = None if took is None or seconds is None else seconds + took
    return Planned(
        key=work.key, model=work.spec.model, label=work.label(), seed=work.spec.seed,
        state=found.state, missing=tuple(t.label for t in found.missing), error=found.error,
        forward=forward, backward=backward, flops=flops, seconds=seconds,
    )  # fmt: skip
