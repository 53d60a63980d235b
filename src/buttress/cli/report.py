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
@click.option("--site", is_flag=True,
              help="Also write what GitHub Pages or a Hugging Face Space needs, a feed of new runs "
                   "and all numbers as JSON.")  # fmt: skip
@click.option("--url", default="", help="Address of the site, for the links of its feed.")
@JSON_OPTION
def command(
    roots: tuple[Path, ...], out: Path, references: tuple[Path, ...], title: str, site: bool,
    url: str, as_json: bool,
) -> None:  # fmt: skip
    """Write an HTML report about all runs below ROOTS."""
    from buttress.report import write_report, write_site

    if url and not site:
        raise click.UsageError("--url applies to --site only; add --site")
    with show_progress() as progress:
        if site:
            page = write_site(
                roots, out, title=title, url=url, references=references, progress=progress
            )
        else:
            page = write_report(roots, out, title=title, references=references, progress=progress)
    if as_json:
        print_json({"report": str(page)})
    else:
        print_line(f"report: {page}")
