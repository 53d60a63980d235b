"""The end of a study: analyses of all its runs at once, then its answer."""

from __future__ import annotations

from pathlib import Path

from buttress.progress import Progress
from buttress.records.answer import Answer, write_answer
from buttress.study.answer import answer
from buttress.study.scales import Scale
from buttress.study.spec import StudySpec
from buttress.study.together import complete_together


def conclude(
    study: StudySpec, scale: Scale, root: Path, *, progress: Progress | None = None
) -> Answer:
    """What the finished runs say together, saved below ``root/studies``."""
    complete_together(study, scale, root, progress=progress)
    found = answer(study, scale, root)
    write_answer(root, found)
    return found
