"""`buttress data`: datasets on this machine."""

from __future__ import annotations

import click

from buttress.cli.checks import check_dataset
from buttress.cli.console import print_json, print_line, show_progress
from buttress.cli.options import JSON_OPTION, SuggestingGroup, checked


@click.group("data", cls=SuggestingGroup)
def command() -> None:
    """Download, verify and convert datasets."""


@command.command("get")
@click.argument("name", callback=checked(check_dataset))
@JSON_OPTION
def get(name: str, as_json: bool) -> None:
    """Download dataset NAME, verify its checksum and store it in the cache folder."""
    from buttress.data import download_dataset, load_dataset

    with show_progress() as progress:
        path = download_dataset(name, progress=progress)
        sizes = {split: len(load_dataset(name, split)) for split in ("train", "val", "test")}
    if as_json:
        print_json({"name": name, "path": str(path), "images": sizes})
    else:
        counts = ", ".join(f"{n:,} {split}" for split, n in sizes.items())
        print_line(f"{name} is in {path}: {counts} images")
