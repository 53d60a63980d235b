"""`buttress export`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from buttress.cli.checks import check_run
from buttress.cli.console import print_json, print_line, show_progress
from buttress.cli.options import JSON_OPTION, checked


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path), callback=checked(check_run))
@click.option("--to", required=True, type=click.Path(path_type=Path), help="Output folder.")
@click.option("--which", type=click.Choice(["best", "last"]), default="best", show_default=True)
@click.option("--name", default="", help="Name of the model.")
@click.option("--authors", default="", help="Authors of the model.")
@click.option("--link", default="", help="URL of a paper or project page.")
@click.option("--force", is_flag=True, help="Overwrite an existing export.")
@click.option("--push-to-hub", default="", metavar="OWNER/NAME",
              help="Also upload to the Hugging Face Hub.")  # fmt: skip
@JSON_OPTION
def command(
    run: Path, to: Path, which: Literal["best", "last"], name: str, authors: str, link: str,
    force: bool, push_to_hub: str, as_json: bool,
) -> None:  # fmt: skip
    """Export the weights of RUN, a model card and leaderboard records."""
    from buttress.export import export_run

    with show_progress() as progress:
        exported = export_run(run, to, checkpoint=which, name=name, authors=authors, link=link,
                              force=force, push_to_hub=push_to_hub, progress=progress)  # fmt: skip
    if as_json:
        print_json(exported.to_dict())
        return
    print_line(f"export: {exported.path}")
    for file in exported.files:
        print_line(f"  {file}")
    for text in exported.omitted:
        print_line(f"not exported: {text}")
    for text in exported.warnings:
        print_line(f"warning: {text}")
    if exported.hub_url:
        print_line(f"uploaded: {exported.hub_url}")
