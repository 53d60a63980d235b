"""`buttress bench`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from buttress.cli.console import say, say_json, showing
from buttress.files import write_text


@click.group("bench")
def command() -> None:
    """Race Buttress against the tools that are installed here."""


@command.command("attacks")
@click.option("--networks", default="small,slim,vit", show_default=True)
@click.option("--events", default="pgd,autoattack,workers", show_default=True)
@click.option("--data", default="cifar10", show_default=True)
@click.option("--checkpoint", help="FILE=file.py:function, for the small network.")
@click.option("--images", type=int, help="Images per race; by default what takes minutes.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True,
              help="Turns; a racer that took over a minute has one.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/bench-attacks.json"),
              show_default=True, help="Where the numbers go.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def attacks(
    networks: str, events: str, data: str, checkpoint: str | None, images: int | None, repeats: int,
    out: Path, as_json: bool,
) -> None:  # fmt: skip
    """PGD-20 and AutoAttack side by side: seconds, passes, memory, robust images.

    Networks are trained for a few minutes the first time.
    """
    from buttress.bench import attacks as races
    from buttress.bench.networks import make
    from buttress.bench.race import Race
    from buttress.bench.turns import machine
    from buttress.data import load_dataset

    names, rows = networks.split(","), []
    base = Race("", "", images or 0, "", data=data, checkpoint=checkpoint)
    heats = list(races.heats(names, events.split(","), base, len(load_dataset(data, "test"))))
    with showing() as progress:
        for name in names:
            if not (name == "small" and checkpoint):
                make(name, data, progress)
        for heat in heats:
            rows += races.run_heat(heat, repeats, progress)
            write_text(out, json.dumps({"machine": machine(), "rows": rows}, indent=1))
    if as_json:
        say_json({"machine": machine(), "rows": rows})
        return
    say(", ".join(f"{k} {v}" for k, v in machine().items()))
    for line in races.lines(rows):
        say(line)
    say(f"\nNumbers: {out}")


@command.command("training")
@click.option("--networks", default="resnet_18_slim,vit_mini", show_default=True)
@click.option("--data", default="cifar10", show_default=True)
@click.option("--images", type=click.IntRange(1), default=1024, show_default=True)
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True,
              help="Turns; a trainer that took over a minute has one.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/bench-training.json"),
              show_default=True, help="Where the numbers go.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def training(
    networks: str, data: str, images: int, epochs: int, repeats: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """An epoch of PGD-10 training side by side: seconds, and accuracy afterwards."""
    from buttress.bench import training as races
    from buttress.bench.lap import Lap
    from buttress.bench.turns import machine

    rows: list[dict[str, object]] = []
    with showing() as progress:
        for network in networks.split(","):
            rows += races.run_laps(Lap("", network, images, epochs, data), repeats, progress)
            write_text(out, json.dumps({"machine": machine(), "rows": rows}, indent=1))
    if as_json:
        say_json({"machine": machine(), "rows": rows})
        return
    say(", ".join(f"{k} {v}" for k, v in machine().items()))
    for line in races.lines(rows):
        say(line)
    say(f"\nNumbers: {out}")
