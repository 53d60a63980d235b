"""Write the HTML report of runs and studies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from buttress.report.collect import (
    ReportData,
    RunPage,
    collect_runs,
    raise_no_runs,
    read_run_details,
)
from buttress.report.leaderboard import Leaderboard, LeaderboardRow, build_leaderboards
from buttress.report.pages import PageRenderer, SiteIndex, comparison_groups
from buttress.report.study_page import StudyPageData, read_study_results
from buttress.results.robustbench import LeaderboardEntries, read_leaderboard_entries
from buttress.results.run import Run
from buttress.results.study_result import StudyResult, study_result_path
from buttress.system.files import remove_temporary_files, write_derived_text
from buttress.system.progress import Progress, SilentProgress
from buttress.system.signatures import explain_arguments

SILENT = SilentProgress()


@explain_arguments("bt.write_report(['runs'], 'report')")
def write_report(
    roots: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    title: str = "Buttress report",
    subtitle: str = "",
    references: Sequence[Path] = (),
    study_results: Sequence[Path] = (),
    progress: Progress = SILENT,
) -> Path:
    """Write ``index.html`` and one page per run and per study from the records below ``roots``.

    The pages work offline. Each is written atomically; ``index.html`` is written
    last, so that it never links to a page that is not there. ``references`` are files or folders
    of RobustBench records, shown as rows of published accuracies; ``study_results`` are
    files of studies that do not lie below ``roots``.

    Returns:
        The path of ``index.html``.
    """
    roots = [roots] if isinstance(roots, (str, Path)) else roots
    paths, out = [Path(root) for root in roots], Path(out)
    content = read_report_content(paths, references, study_results, progress)
    return write_pages(content, out, title, subtitle, progress=progress)


@dataclass(frozen=True)
class ReportContent:
    """Everything that the pages of a report are made from."""

    data: ReportData
    studies: tuple[StudyPageData, ...]
    unreadable_studies: tuple[str, ...]
    published: LeaderboardEntries


def read_report_content(
    roots: Sequence[Path],
    references: Sequence[Path],
    study_results: Sequence[Path],
    progress: Progress,
) -> ReportContent:
    """Read the records of a report; raise `UserError` if there are none."""
    published = read_leaderboard_entries(references)
    data = collect_runs(roots, progress)
    studies, unreadable = read_study_results(roots, study_results)
    if not (data.runs or data.unreadable or studies or unreadable):
        raise_no_runs(roots)
    return ReportContent(data, studies, unreadable, published)


def write_pages(
    content: ReportContent,
    out: Path,
    title: str,
    subtitle: str = "",
    *,
    links: Sequence[str] = (),
    progress: Progress = SILENT,
) -> Path:
    """Write the pages; the first one links to the files ``links`` beside it."""
    data, studies = content.data, content.studies
    leaderboards = build_leaderboards(data.runs)
    site = SiteIndex(
        studies,
        comparison_groups(leaderboards),
        {r.key: r.slug for r in reversed(data.runs)},
        links,
    )
    pages = PageRenderer(title, subtitle, site)
    task = progress.add_task(
        "writing pages", len(data.runs) + len(studies) + 1 + bool(site.comparison_groups)
    )
    remove_temporary_files(out)
    rendered = chain(
        render_model_pages(pages, data.runs, leaderboards),
        render_study_pages(pages, studies, data.runs),
    )
    for name, page in chain(
        rendered, [("compare.html", pages.compare())] if site.comparison_groups else []
    ):
        write_derived_text(out / name, page)
        task.advance(note=name)
    index = out / "index.html"
    write_derived_text(
        index, pages.index(data, leaderboards, content.published, content.unreadable_studies)
    )
    task.advance(note="index.html")
    task.close()
    return index


def write_study_report(answer: StudyResult, root: Path, progress: Progress = SILENT) -> Path:
    """Write the report of a study beside its answer below ``root``; return its first page."""
    file = study_result_path(root, answer.study, answer.scale)
    keys = dict.fromkeys(key for row in answer.rows for key in row.run_keys)
    folders = [root / "runs" / key for key in keys if Run(root / "runs" / key).exists]
    return write_report(
        folders or [file.parent], file.parent / "report", title=answer.title,
        subtitle=answer.question, study_results=[file], progress=progress,
    )  # fmt: skip


def render_model_pages(
    pages: PageRenderer, runs: Sequence[RunPage], tables: Sequence[Leaderboard]
) -> Iterator[tuple[str, str]]:
    """One page at a time, so that only one is in memory."""
    rows_by_slug: dict[str, list[tuple[Leaderboard, LeaderboardRow]]] = {}
    for board in tables:
        for row in board.rows:
            rows_by_slug.setdefault(row.run.slug, []).append((board, row))
    for run in runs:
        details, problems = read_run_details(run)
        page = pages.model(run, rows_by_slug.get(run.slug, []), details, problems)
        yield f"models/{run.slug}.html", page


def render_study_pages(
    pages: PageRenderer, studies: Sequence[StudyPageData], runs: Sequence[RunPage]
) -> Iterator[tuple[str, str]]:
    by_key = {run.key: run for run in reversed(runs)}  # of several with one key, the first
    for study in studies:
        yield f"studies/{study.slug}.html", pages.study(study, by_key)
