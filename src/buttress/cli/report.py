"""`buttress report`."""

from __future__ import annotations

from pathlib import Path

import click

from buttress.cli.console import print_json, print_line, show_progress
from buttress.cli.options import JSON_OPTION


@click.command("report")
@click.argument("roots", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("report"), show_default=True,
              help="Output folder.")  # fmt: skip
@click.option("--reference", "references", multiple=True, type=click.Path(path_type=Path),
              help="RobustBench records to compare with: a JSON file or a folder.")  # fmt: skip
@click.option("--title", default="Buttress report", show_default=True)
@JSON_OPTION
def command(
    roots: tuple[Path, ...], out: Path, references: tuple[Path, ...], title: str, as_json: bool
) -> None:
    """Write an HTML report about all runs below ROOTS."""
    from buttress.report import write_report

    with show_progress() as progress:
        page = write_report(list(roots), out, title=title, references=references, progress=progress)
    if as_json:
        print_json({"report": str(page)})
    else:
        print_line(f"report: {page}")
