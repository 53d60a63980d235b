"""Read runs from disk; unreadable files are reported and skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from buttress.results.core import read_record_json
from buttress.results.diagnosis import Diagnosis
from buttress.results.model_code import CODE_FOLDER
from buttress.results.run import Run, find_runs
from buttress.results.run_results import RunResults
from buttress.system.progress import Progress, track


@dataclass(eq=False)
class RunPage(RunResults):
    """One run with what its page shows beyond its results."""

    slug: str = ""
    suffix: str = ""  # tells runs apart that share model and training
    sparsity: SparsityView | None = None
    curves: list[EpsCurveResult] = field(default_factory=list)
    galleries: list[str] = field(default_factory=list)  # analysis files, read page by page
    other_analyses: list[str] = field(default_factory=list)  # shown by their saved pictures
    analysis_summaries: list[AnalysisPicture] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{self.model} {self.suffix}".strip()

    @property
    def description(self) -> str:
        """For a sentence: ``vit_tiny trained with pgd_at``."""
        how = "with standard training" if self.is_standard else f"trained with {self.objective}"
        return f"{self.label} {how}"


@dataclass(frozen=True)
class UnreadableRun:
    """A folder with a ``run.json`` that cannot be read."""

    display_path: str
    reason: str


@dataclass(frozen=True)
class ReportData:
    runs: tuple[RunPage, ...]
    unreadable: tuple[UnreadableRun, ...]


@dataclass(frozen=True)
class RunDetails:
    """Details that only the page of a model shows; read when it is written."""

    history: tuple[dict[str, Any], ...] = ()
    summary: dict[str, Any] = field(default_factory=dict)
    galleries: tuple[GalleryView, ...] = ()
    pictures: tuple[AnalysisPicture, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)  # files of a user's model


def collect_runs(roots: Sequence[Path], progress: Progress) -> ReportData:
    """Read all runs below the roots, each once."""
    located_runs = track(progress, "reading records", find_all_runs(roots), lambda run: run[1])
    runs: list[RunPage] = []
    unreadable: list[UnreadableRun] = []
    for run, display_path in located_runs:
        try:
            runs.append(collect_run(run, display_path))
        except (ButtressError, KeyError, TypeError, ValueError, OSError) as error:
            unreadable.append(UnreadableRun(display_path, error_text(error, run, display_path)))
    add_distinguishing_labels(runs)
    return ReportData(tuple(runs), tuple(unreadable))


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
    names = ", ".join(str(r) for r in roots) or "no folder"
    raise UserError(
        f"no runs found in {names}: a run is a folder with a run.json; "
        "train one with `buttress train` or `buttress quickstart`"
    )


def collect_run(run: Run, display_path: str) -> RunPage:
    """Read a run; raise if its header, specification or state cannot be read."""
    page = RunPage(run, display_path)
    page.slug = slugify(str(page.header.get("key", display_path)))
    _ = page.spec, page.state, page.failure_message
    page.problems += [reason for e in page.evaluations for reason in e.unreadable.values()]
    for name in run.analyses():
        add_analysis(page, name)
    return page


def add_analysis(page: RunPage, name: str) -> None:
    """Add the result of an analysis, or why it cannot be read."""
    try:
        content = read_record_json(page.run.analysis_file(name))
        if reason := content.get("does_not_apply"):
            page.analysis_summaries.append(AnalysisPicture(name, reason=str(reason)))
            return
        result = parse_analysis(content)
    except (ValueError, OSError, CorruptFileError) as error:
        reason = error_text(error, page.run, page.display_path)
        file = f"{page.display_path}/analysis/{name}.json"
        page.problems.append(f"{file} is unreadable; run the analysis again ({reason})")
        return
    if result is not None and content.get("summary"):
        page.analysis_summaries.append(AnalysisPicture(name, str(content["summary"])))
    if isinstance(result, SparsityView):
        page.sparsity = result
    elif isinstance(result, EpsCurveResult):
        page.curves.append(result)
    elif not isinstance(result, Diagnosis):
        (page.galleries if isinstance(result, GalleryView) else page.other_analyses).append(name)


def read_run_details(page: RunPage) -> tuple[RunDetails, tuple[str, ...]]:
    """Read epochs, summary and images of one run, and list unreadable files."""
    problems: list[str] = []
    history: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    try:
        history = [e for e in page.run.history if isinstance(e, dict)]
        summary = page.run.summary if page.run.is_trained else {}
    except (ButtressError, OSError, KeyError) as error:
        problems.append(f"{error_text(error, page.run, page.display_path)}; skipped")
    contents = (read_record_json(page.run.analysis_file(name)) for name in page.galleries)
    galleries = [g for g in map(parse_analysis, contents) if isinstance(g, GalleryView)]
    pictures = read_pictures(page.run.analysis_file(name) for name in page.other_analyses)
    code = read_code_files(page)
    return RunDetails(tuple(history), summary, tuple(galleries), pictures, code), tuple(problems)


def read_code_files(page: RunPage) -> dict[str, str]:
    """Text of the Python files that a run keeps of its model, by path in the run."""
    folder = page.run.path / CODE_FOLDER
    if page.spec.model_sha256 is None or not folder.is_dir():
        return {}
    files = sorted(p for p in folder.rglob("*.py") if p.is_file())
    return {
        p.relative_to(page.run.path).as_posix(): p.read_text(encoding="utf-8", errors="replace")
        for p in files
    }


def add_distinguishing_labels(runs: Sequence[RunPage]) -> None:
    """Add suffixes to runs with the same model and training, and unique page names."""
    trainings = [(r.model, r.objective, r.training_threat) for r in runs]
    runs_per_training = Counter(trainings)
    runs_per_seed = Counter((t, r.spec.seed) for t, r in zip(trainings, runs, strict=True))
    slug_counts: Counter[str] = Counter()
    for training, run in zip(trainings, runs, strict=True):
        if runs_per_training[training] > 1:
            has_own_seed = runs_per_seed[training, run.spec.seed] == 1
            folder = f"({run.display_path.rsplit('/', 1)[-1]})"
            run.suffix = f"seed {run.spec.seed}" if has_own_seed else folder
        slug_counts[run.slug] += 1
        if slug_counts[run.slug] > 1:
            run.slug = f"{run.slug}-{slug_counts[run.slug]}"


def error_text(error: Exception, run: Run, display_path: str) -> str:
    """Text of an error with the displayed path of the run."""
    text = f"missing key {error}" if isinstance(error, KeyError) else str(error)
    return text.replace(str(run.path), display_path)
