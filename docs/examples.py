"""Builds the pages of kept studies, so that readers see real ones; weights are not kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buttress.results.study_result import TableValue


def write_sites(folder: Path, target: Path) -> None:
    """Each study below ``kept`` as pages below ``target``."""
    from buttress.report import write_report
    from buttress.results.study_result import read_study_result

    for place in sorted(path.parent for path in folder.glob("*/answer.json")):
        result = read_study_result(place / "answer.json")
        folders = sorted((place / "runs").iterdir())
        write_report(
            folders, target / place.name, title=result.title, subtitle=result.question,
            study_results=[place / "answer.json"],
        )  # fmt: skip


def table_of(answer: Path) -> str:
    """The measured lines of a kept answer, published numbers in brackets."""
    from buttress.results.study_result import read_study_result

    result = read_study_result(answer)
    names = [name for name in result.columns if result.units[name] == "percent"]
    rows = [[*result.axes, *(name.replace("_", " ") for name in names)]]
    rows.append(["---"] * len(rows[0]))
    for line in result.rows:
        numbers = [line.values[name] for name in names]
        if any(number.value is not None for number in numbers):
            rows.append([*line.labels, *map(_cell, numbers)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(number: TableValue) -> str:
    ours = "" if number.value is None else f"{100 * number.value:.1f}%"
    return ours if number.published is None else f"{ours} ({100 * number.published:.1f}%)"
