"""`buttress export`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from buttress.cli.console import say, say_json, showing


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", required=True, type=click.Path(path_type=Path), help="The folder to write.")
@click.option("--which", type=click.Choice(["best", "last"]), default="best", show_default=True)
@click.option("--name", default="", help="What the model is called.")
@click.option("--authors", default="", help="Who made it.")
@click.option("--link", default="", help="A paper or a page about it.")
@click.option("--force", is_flag=True, help="Replace an earlier export.")
@click.option("--push-to-hub", default="", metavar="OWNER/NAME",
              help="Upload to the Hugging Face hub as well.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    run: Path, to: Path, which: Literal["best", "last"], name: str, authors: str, link: str,
    force: bool, push_to_hub: str, as_json: bool,
) -> None:  # fmt: skip
    """Write the weights of RUN, a model card and leaderboard records into a folder."""
    from buttress.sharing import export

    with showing() as progress:
        found = export(run, to, which=which, name=name, authors=authors, link=link, force=force,
                       push_to_hub=push_to_hub, progress=progress)  # fmt: skip
    if as_json:
        say_json(found.to_dict())
        return
    say(f"export: {found.path}")
    for file in found.files:
        say(f"  {file}")
    for text in found.left_out:
        say(f"left out: {text}")
    for text in found.doubts:
        say(f"warning: {text}")
    if found.hub:
        say(f"uploaded: {found.hub}")
