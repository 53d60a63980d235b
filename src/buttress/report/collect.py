"""Read runs from disk; unreadable files are reported and skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from buttress.errors import ButtressError, CorruptFileError, UserError
from buttress.report.analyses import (
    AnalysisPicture,
    EpsCurveResult,
    GalleryView,
    SparsityView,
    parse_analysis,
    read_pictures,
)
from buttress.report.formatting import slugify
from buttress.report.run_results import (
    AnalysisSummary,
    ReportData,
    RunResults,
    SuiteResults,
    UnreadableRun,
    collect_suite,
)
from buttress.results.core import read_record_json
from buttress.results.diagnosis import Diagnosis, read_diagnosis
from buttress.results.run import Run, find_runs
from buttress.system.progress import Progress


@dataclass(frozen=True)
class RunDetails:
    """Details that only the page of a model shows; read when it is written."""

    history: tuple[dict[str, Any], ...] = ()
    summary: dict[str, Any] = field(default_factory=dict)
    galleries: tuple[GalleryView, ...] = ()
    pictures: tuple[AnalysisPicture, ...] = ()


def collect_runs(roots: Sequence[Path], progress: Progress) -> ReportData:
    """Read all runs below the roots, each once."""
    located_runs = find_all_runs(roots)
    task = progress.add_task("reading records", len(located_runs))
    runs: list[RunResults] = []
    unreadable: list[UnreadableRun] = []
    for run, display_path in located_runs:
        try:
            runs.append(collect_run(run, display_path))
        except (ButtressError, KeyError, TypeError, ValueError, OSError) as error:
            unreadable.append(UnreadableRun(display_path, error_text(error, run, display_path)))
        task.advance(note=display_path)
    task.close()
    return ReportData(tuple(add_distinguishing_labels(runs)), tuple(unreadable))


def find_all_runs(roots: Sequence[Path]) -> list[tuple[Run, str]]:
    """Runs with their displayed path, relative to the parent of the root."""
    located: dict[Path, tuple[Run, str]] = {}
    for root in map(Path, roots):
        if not root.exists():
            raise UserError(f"no such folder: {root}; `buttress report` takes folders with runs")
        for run in find_runs(root):
            display_path = (Path(root.resolve().name) / run.path.relative_to(root)).as_posix()
            located.setdefault(run.path.resolve(), (run, display_path))
    return list(located.values())


def raise_no_runs(roots: Sequence[Path]) -> None:
    """Raise because no run was found."""
    names = ", ".join(str(r) for r in roots) or "no folder"
    raise UserError(
        f"no runs found in {names}: a run is a folder with a run.json; "
        "train one with `buttress train` or `buttress quickstart`"
    )


def collect_run(run: Run, place: str) -> RunResults:
    header = run.header
    view = RunResults(
        run=run,
        slug=slugify(str(header.get("key", place))),
        place=place,
        spec=run.spec,
        header=header,
        state=run.state,
        message="" if run.failure is None else run.failure.message,
    )
    found = tuple(suites(run, place))
    trouble = tuple(reason for suite in found for reason in suite.unreadable.values())
    return add_analyses(replace(view, suites=found, problems=trouble))


def suites(run: Run, place: str) -> list[SuiteResults]:
    found = (collect_suite(run.suite_folder(s), f"{place}/eval/{s}") for s in run.suites())
    return [suite for suite in found if suite is not None]


def add_analyses(view: RunResults) -> RunResults:
    sparsity: SparsityView | None = None
    curves: list[EpsCurveResult] = []
    galleries: list[str] = []
    others: list[str] = []
    summaries: list[AnalysisSummary] = []
    problems: list[str] = []
    diagnosis = read_diagnosis(view.run.path / "doctor.json")
    for name in view.run.analyses():
        try:
            content = read_record_json(view.run.analysis_file(name))
            if reason := content.get("does_not_apply"):
                summaries.append(AnalysisSummary(name, reason=str(reason)))
                continue
            result = parse_analysis(content)
        except (ValueError, OSError, CorruptFileError) as error:
            reason = error_text(error, view.run, view.place)
            file = f"{view.place}/analysis/{name}.json"
            problems.append(f"{file} is unreadable; run the analysis again ({reason})")
            continue
        if result is not None and content.get("summary"):
            summaries.append(AnalysisSummary(name, str(content["summary"])))
        if isinstance(result, SparsityView):
            sparsity = result
        elif isinstance(result, EpsCurveResult):
            curves.append(result)
        elif isinstance(result, Diagnosis):
            diagnosis = result
        else:
            (galleries if isinstance(result, GalleryView) else others).append(name)
    return replace(
        view,
        sparsity=sparsity,
        curves=tuple(curves),
        galleries=tuple(galleries),
        others=tuple(others),
        said=tuple(summaries),
        diagnosis=diagnosis,
        problems=(*view.problems, *problems),
    )


def read_run_details(view: RunResults) -> tuple[RunDetails, tuple[str, ...]]:
    """Read epochs, summary and images of one run, and list unreadable files."""
    problems: list[str] = []
    history: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    try:
        history = [e for e in view.run.history if isinstance(e, dict)]
        summary = view.run.summary if view.run.is_trained else {}
    except (ButtressError, OSError, KeyError) as error:
        problems.append(f"{error_text(error, view.run, view.place)}; skipped")
    contents = (read_record_json(view.run.analysis_file(name)) for name in view.galleries)
    galleries = [g for g in map(parse_analysis, contents) if isinstance(g, GalleryView)]
    pictures = read_pictures(view.run.analysis_file(name) for name in view.others)
    return RunDetails(tuple(history), summary, tuple(galleries), pictures), tuple(problems)


def add_distinguishing_labels(runs: Sequence[RunResults]) -> list[RunResults]:
    """Add suffixes to runs with the same model and training, and unique page names."""
    runs_per_training = Counter((r.model, r.objective, r.trained_on) for r in runs)
    runs_per_seed = Counter((r.model, r.objective, r.trained_on, r.spec.seed) for r in runs)
    slug_counts: Counter[str] = Counter()
    result = []
    for r in runs:
        suffix = ""
        if runs_per_training[r.model, r.objective, r.trained_on] > 1:
            alone = runs_per_seed[r.model, r.objective, r.trained_on, r.spec.seed] == 1
            suffix = f"seed {r.spec.seed}" if alone else f"({r.place.rsplit('/', 1)[-1]})"
        slug_counts[r.slug] += 1
        unique_slug = r.slug if slug_counts[r.slug] == 1 else f"{r.slug}-{slug_counts[r.slug]}"
        result.append(replace(r, slug=unique_slug, suffix=suffix))
    return result


def error_text(error: Exception, run: Run, display_path: str) -> str:
    """Text of an error with the displayed path of the run."""
    text = f"missing key {error}" if isinstance(error, KeyError) else str(error)
    return text.replace(str(run.path), display_path)
