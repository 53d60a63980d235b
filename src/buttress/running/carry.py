"""Carries a study out: its runs, then what they say together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from buttress.progress import Progress
from buttress.records.answer import Answer, answer_file
from buttress.running.bag import Failure
from buttress.running.launch import Launch, ending_on_term, launch
from buttress.running.lock import holding
from buttress.study.conclude import conclude
from buttress.study.plan import works_of
from buttress.study.scales import Scale
from buttress.study.spec import StudySpec
from buttress.study.survey import survey


@dataclass(frozen=True)
class Carried:
    """How a study stands after a driver has ended."""

    answer: Answer
    failures: list[Failure]
    left: int  # runs that are another's: of other shards


def carry_out(
    study: StudySpec, scale: Scale, root: Path, how: Launch, progress: Progress
) -> Carried:
    """Every run of this part, then the analyses of all and the answer."""
    works = works_of(study, scale, root, how.only)
    with ending_on_term():
        failures = launch(works, how, progress) if works else []
        ended = {failure.work.key for failure in failures}  # some only wait for a failed one
        others = survey([work for work in works if work.key not in ended])
        left = sum(found.state in ("new", "started") for found in others)
        with holding(answer_file(root, study.name, scale).parent.with_suffix(".lock")):
            found = conclude(study, scale, root, progress=progress)
    return Carried(found, failures, left)
