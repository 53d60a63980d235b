"""The end of a study: analyses of all its runs at once, then its answer."""

from __future__ import annotations

from pathlib import Path

from buttress.analysis.core import analyse_together
from buttress.analysis.subject import DoesNotApply
from buttress.errors import ButtressError
from buttress.progress import Progress, Silent
from buttress.records.answer import Answer, answer_file, write_answer
from buttress.records.run import Run
from buttress.study.answer import answer
from buttress.study.plan import works_of
from buttress.study.scales import Scale
from buttress.study.spec import StudySpec


def conclude(
    study: StudySpec, scale: Scale, root: Path, *, progress: Progress | None = None
) -> Answer:
    """What the finished runs say together, saved below ``root/studies``."""
    progress = progress or Silent()
    scaled = study.scaled(scale)
    runs = [Run(work.folder) for work in works_of(study, scale, root)]
    done = [run for run in runs if run.state == "done"]
    if len(done) == len(runs) or done:
        out = answer_file(root, study.name, scale).parent
        for use in scaled.together:
            _together(use.name, done, out, use.args, scaled.test_limit, progress)
    found = answer(study, scale, root)
    write_answer(root, found)
    return found


def _together(
    name: str, runs: list[Run], out: Path, args: dict[str, object], limit: int | None,
    progress: Progress,
) -> None:  # fmt: skip
    """One analysis; that it cannot be had leaves a gap in the answer and stops nothing."""
    try:
        analyse_together(name, runs, out, args=args, limit=limit, progress=progress)
    except DoesNotApply as reason:
        progress.log(f"{name} does not apply: {reason}")
    except (ButtressError, RuntimeError, OSError) as error:
        progress.log(f"{name} of all runs failed: {error}")
