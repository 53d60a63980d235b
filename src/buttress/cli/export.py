"""`buttress export`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from buttress.cli.checks import check_run
from buttress.cli.console import print_json, print_line, show_progress
from buttress.cli.options import JSON_OPTION, checked

ZOO = Path("zoo")  # in place of a run: all models of the zoo


def check_exported(run: str | Path) -> None:
    """Raise on a run that does not exist."""
    if Path(run) != ZOO:
        check_run(run)


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path), callback=checked(check_exported))
@click.option("--to", required=True, type=click.Path(path_type=Path), help="Output folder.")
@click.option("--which", type=click.Choice(["best", "last"]), default="best", show_default=True)
@click.option("--name", default="", help="Name of the model.")
@click.option("--authors", default="", help="Authors of the model.")
@click.option("--link", default="", help="URL of a paper or project page.")
@click.option("--force", is_flag=True, help="Overwrite an existing export.")
@click.option("--push-to-hub", default="", metavar="OWNER/NAME",
              help="Also upload to the Hugging Face Hub; OWNER for the zoo.")  # fmt: skip
@JSON_OPTION
def command(
    run: Path, to: Path, which: Literal["best", "last"], name: str, authors: str, link: str,
    force: bool, push_to_hub: str, as_json: bool,
) -> None:  # fmt: skip
    """Export the weights of RUN, a model card and leaderboard records.

    RUN may be `zoo`: all trained models of the package, one folder each.
    """
    from buttress.export import export_run, export_zoo

    if run == ZOO and not run.exists():
        with show_progress() as progress:
            addresses = export_zoo(to, owner=push_to_hub, force=force, progress=progress)
        if as_json:
            print_json({str(folder): address or None for folder, address in addresses.items()})
        for folder, address in addresses.items() if not as_json else ():
            print_line(f"export: {folder}" + (f", uploaded: {address}" if address else ""))
        return

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
