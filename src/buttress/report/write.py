"""Runs -> a folder of pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from buttress.files import write_text
from buttress.progress import Progress, Silent
from buttress.records.robustbench import read_published
from buttress.report.board import Board, Row, boards
from buttress.report.collect import collect, collect_details
from buttress.report.pages import Pages

SILENT = Silent()


def write_report(
    roots: Sequence[Path],
    out: Path,
    *,
    title: str = "Buttress report",
    subtitle: str = "",
    references: Sequence[Path] = (),
    progress: Progress = SILENT,
) -> Path:
    """Writes ``index.html`` and one page per run from the records below ``roots``.

    The pages need no network and no server. Each is whole or absent; ``index.html`` is written
    last, so that it never links to a page that is not there. ``references`` are files or folders
    of RobustBench records, shown as rows of published numbers beside ours.

    Returns:
        The path of ``index.html``.
    """
    published = read_published(references)
    found = collect(roots, progress)
    tables = boards(found.runs)
    places: dict[str, list[tuple[Board, Row]]] = {}
    for board in tables:
        for row in board.rows:
            places.setdefault(row.run.slug, []).append((board, row))
    pages = Pages(title, subtitle)
    task = progress.task("writing pages", len(found.runs) + 1)
    for run in found.runs:
        details, problems = collect_details(run)
        page = pages.model(run, places.get(run.slug, []), details, problems)
        write_text(out / "models" / f"{run.slug}.html", page)
        task.advance(note=run.slug)
    index = out / "index.html"
    write_text(index, pages.index(found, tables, published))
    task.advance(note="index.html")
    task.close()
    return index
