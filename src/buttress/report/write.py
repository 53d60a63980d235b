"""Runs and studies -> a folder of pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from buttress.files import write_text
from buttress.progress import Progress, Silent
from buttress.records.robustbench import read_published
from buttress.report.board import Board, Row, boards
from buttress.report.collect import collect, collect_details, refuse_nothing
from buttress.report.compare_page import compared
from buttress.report.pages import Pages, Site
from buttress.report.studies import StudyView, collect_studies
from buttress.report.views import RunView

SILENT = Silent()


def write_report(
    roots: Sequence[Path],
    out: Path,
    *,
    title: str = "Buttress report",
    subtitle: str = "",
    references: Sequence[Path] = (),
    answers: Sequence[Path] = (),
    progress: Progress = SILENT,
) -> Path:
    """Writes ``index.html`` and one page per run and per study from the records below ``roots``.

    The pages need no network and no server. Each is whole or absent; ``index.html`` is written
    last, so that it never links to a page that is not there. ``references`` are files or folders
    of RobustBench records, shown as rows of published numbers beside ours; ``answers`` are files
    of studies that do not lie below ``roots``.

    Returns:
        The path of ``index.html``.
    """
    published = read_published(references)
    found = collect(roots, progress)
    studies, unread = collect_studies(roots, answers)
    if not (found.runs or found.broken or studies or unread):
        refuse_nothing(roots)
    tables = boards(found.runs)
    site = Site(studies, compared(tables), {r.key: r.slug for r in reversed(found.runs)})
    pages = Pages(title, subtitle, site)
    task = progress.task("writing pages", len(found.runs) + len(studies) + 1 + bool(site.groups))
    made = chain(model_pages(pages, found.runs, tables), study_pages(pages, studies, found.runs))
    for name, page in chain(made, [("compare.html", pages.compare())] if site.groups else []):
        write_text(out / name, page)
        task.advance(note=name)
    index = out / "index.html"
    write_text(index, pages.index(found, tables, published, unread))
    task.advance(note="index.html")
    task.close()
    return index


def model_pages(
    pages: Pages, runs: Sequence[RunView], tables: Sequence[Board]
) -> Iterator[tuple[str, str]]:
    """One page at a time, so that only one is in memory."""
    places: dict[str, list[tuple[Board, Row]]] = {}
    for board in tables:
        for row in board.rows:
            places.setdefault(row.run.slug, []).append((board, row))
    for run in runs:
        details, problems = collect_details(run)
        page = pages.model(run, places.get(run.slug, []), details, problems)
        yield f"models/{run.slug}.html", page


def study_pages(
    pages: Pages, studies: Sequence[StudyView], runs: Sequence[RunView]
) -> Iterator[tuple[str, str]]:
    by_key = {run.key: run for run in reversed(runs)}  # of several with one key, the first
    for study in studies:
        yield f"studies/{study.slug}.html", pages.study(study, by_key)
