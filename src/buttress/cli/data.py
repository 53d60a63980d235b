"""`buttress data`: data sets on this machine."""

from __future__ import annotations

import click

from buttress.cli.console import say, say_json, showing


@click.group("data")
def command() -> None:
    """Download, verify and convert data sets."""


@command.command("get")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def get(name: str, as_json: bool) -> None:
    """Download NAME once, verify its content and keep it in the cache folder."""
    from buttress.data import get_dataset, load_dataset

    with showing() as progress:
        path = get_dataset(name, progress=progress)
        sizes = {split: len(load_dataset(name, split)) for split in ("train", "val", "test")}
    if as_json:
        say_json({"name": name, "path": str(path), "images": sizes})
    else:
        counts = ", ".join(f"{n:,} {split}" for split, n in sizes.items())
        say(f"{name} is in {path}: {counts} images")
