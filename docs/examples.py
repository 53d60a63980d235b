"""Builds the pages of kept studies, so that readers see real ones; weights are not kept."""

from __future__ import annotations

from pathlib import Path


def write_sites(kept: Path, target: Path) -> None:
    """Each study below ``kept`` as pages below ``target``."""
    from buttress.records.answer import read_answer
    from buttress.report import write_report

    for place in sorted(path.parent for path in kept.glob("*/answer.json")):
        found = read_answer(place / "answer.json")
        folders = sorted((place / "runs").iterdir())
        write_report(
            folders, target / place.name, title=found.title, subtitle=found.question,
            answers=[place / "answer.json"],
        )  # fmt: skip
