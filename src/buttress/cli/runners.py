"""The options of commands that carry runs out: where these go, and how many at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]
WORKERS = click.IntRange(1, 100_000)  # more do not fit in what divides by them


def runners(function: Command) -> Command:
    """What becomes a `Launch`."""
    for option in (
        click.option("--device", default="auto", show_default=True),
        click.option("--retry", is_flag=True, help="Try runs again that failed before."),
        click.option("--gpus-per-run", type=float, default=0.0, show_default=True, help="On Ray."),
        click.option("--cpus-per-run", type=float, default=1.0, show_default=True, help="On Ray."),
        click.option("--address", help="Of a Ray cluster; RAY_ADDRESS or the one that runs here."),
        click.option("--on", type=click.Choice(["local", "ray"]), default="local",
                     show_default=True),
        click.option("--workers", type=WORKERS,
                     help="Runs at once; one per GPU or core."),
    ):  # fmt: skip
        function = option(function)
    return function
