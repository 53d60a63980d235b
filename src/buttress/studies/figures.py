"""Figures of a study that show one analysis of several runs in one drawing."""

from __future__ import annotations

from pathlib import Path

from buttress.analysis.core import ANALYSES, AnalysisResult
from buttress.analysis.figures import save_figure
from buttress.errors import ButtressError
from buttress.results.core import read_record_json
from buttress.results.run import Run
from buttress.results.study_result import StudyFigure
from buttress.studies.grid import ExpandedStudy, GridRun, run_label

MAX_PANELS = 12  # more networks in one drawing cannot be read


def draw_analysis_figures(expanded: ExpandedStudy, root: Path) -> None:
    """Draw the analysis figures of a study beside its answer; one without results is removed."""
    folder = expanded.result_path(root).parent
    for figure in expanded.study.figures:
        if figure.kind != "analysis":
            continue
        results = figure_results(figure, expanded, root)
        if results:
            save_figure(ANALYSES.spec(figure.analysis).result.plot, results, folder / figure.file)
        else:
            (folder / figure.file).unlink(missing_ok=True)


def figure_results(
    figure: StudyFigure, expanded: ExpandedStudy, root: Path
) -> dict[str, AnalysisResult]:
    """Saved results of the runs that a figure shows, by the labels of the runs, of one seed."""
    results: dict[str, AnalysisResult] = {}
    first_seed = expanded.scaled.seeds[0]
    for run in expanded.runs:
        selected = all(run.labels.get(axis) in labels for axis, labels in figure.where.items())
        if run.seed != first_seed or not selected or len(results) == MAX_PANELS:
            continue
        result = saved_result(figure.analysis, run, root)
        if result is not None:
            results[run_label(run, expanded.scaled, with_seed=False)] = result
    return results


def saved_result(analysis: str, run: GridRun, root: Path) -> AnalysisResult | None:
    """The saved result of an analysis; None if there is none that can be read."""
    path = Run(root / "runs" / run.key).analysis_file(analysis)
    try:
        content = read_record_json(path)["result"]
        return None if content is None else ANALYSES.spec(analysis).result.parse(content, str(path))
    except (ButtressError, OSError, KeyError):
        return None
