"""The analyses of a whole study: of all its finished runs at once, or of none."""

from __future__ import annotations

from pathlib import Path

from buttress.analysis.core import ANALYSES, analyse_alone, analyse_together, is_standalone
from buttress.analysis.subject import DoesNotApply
from buttress.errors import ButtressError
from buttress.progress import Progress, Silent
from buttress.records.answer import answer_file
from buttress.records.run import Run
from buttress.study.cells import cells_of
from buttress.study.scales import Scale
from buttress.study.spec import StudySpec


def complete_together(
    study: StudySpec, scale: Scale, root: Path, *, progress: Progress | None = None
) -> None:
    """Computes what is not there yet, into the folder of the study's answer."""
    progress, scaled = progress or Silent(), study.scaled(scale)
    out = answer_file(root, study.name, scale).parent
    keys = dict.fromkeys(cell.key for cell in cells_of(study, scale))
    done = [run for key in keys if (run := Run(root / "runs" / key)).is_trained]
    for use in scaled.together:
        try:
            if is_standalone(ANALYSES.entry(use.name)):
                analyse_alone(use.name, out, args=use.args, progress=progress)
            elif done:
                limit = scaled.test_limit
                analyse_together(use.name, done, out, args=use.args, limit=limit, progress=progress)
        except DoesNotApply as reason:
            progress.log(f"{use.name} does not apply: {reason}")
        except (ButtressError, RuntimeError, OSError) as error:  # a gap that stops nothing
            progress.log(f"{use.name} of all runs failed: {error}")
