"""`buttress bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from buttress.cli.console import print_json, print_line, show_progress
from buttress.cli.options import JSON_OPTION, Decorator, SuggestingGroup, add_options


def result_options(file: str) -> Decorator:
    """Add the options of every benchmark; results go to ``file`` by default."""
    return add_options(
        click.option("--repeats", type=click.IntRange(1), default=3, show_default=True,
                     help="Repeats per tool; a tool that takes over a minute runs once."),
        click.option("--out", type=click.Path(path_type=Path), default=Path("results") / file,
                     show_default=True, help="JSON file for the results."),
        JSON_OPTION,
    )  # fmt: skip


@click.group("bench", cls=SuggestingGroup)
def command() -> None:
    """Compare attacks and training with other installed libraries."""


@command.command("attacks")
@click.option("--models", default="small,slim,vit,coatnet", show_default=True)
@click.option("--cases", default="pgd,autoattack,workers", show_default=True,
              help="Of pgd, autoattack, workers and strength.")  # fmt: skip
@click.option("--threats", default="", metavar="THREAT,...",
              help="Threat models, e.g. Linf:8/255 (default: those of each case).")  # fmt: skip
@click.option("--data", default="cifar10", show_default=True)
@click.option("--checkpoint", help="FILE=file.py:function, weights of the small model.")
@click.option("--images", type=int, default=0,
              help="Images per case (default: a few minutes' worth).")  # fmt: skip
@result_options("bench-attacks.json")
def attacks(
    models: str, cases: str, threats: str, repeats: int, out: Path, as_json: bool, **settings: Any
) -> None:
    """Compare PGD-20 and AutoAttack: seconds, passes, memory and robust accuracy.

    Models are trained for a few minutes the first time.
    """
    from buttress.bench.attack_case import ToolRun
    from buttress.bench.attacks import benchmark_attacks, full_tables

    with show_progress() as progress:
        results = benchmark_attacks(
            ToolRun(**settings), models.split(","), cases.split(","),
            threats.split(",") if threats else (), repeats, out, progress,
        )  # fmt: skip
    _print_results(results, full_tables, out, as_json)


@command.command("training")
@click.option("--cases", default="steps,epochs", show_default=True,
              help="steps: CPU time of a step of the recipe mini-at beside a plain PyTorch loop, "
              "on random images; epochs: PGD-10 training beside other libraries.")  # fmt: skip
@click.option("--models", default="", metavar="MODEL,...",
              help="Models (default: those of each case).")  # fmt: skip
@click.option("--data", default="cifar10", show_default=True)
@click.option("--images", type=click.IntRange(1), default=1024, show_default=True,
              help="Training images of an epoch.")  # fmt: skip
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True)
@result_options("bench-training.json")
def training(
    cases: str, models: str, repeats: int, out: Path, as_json: bool, **settings: Any
) -> None:
    """Compare adversarial training with plain loops and other libraries: time and accuracy."""
    from buttress.bench.training import TrainerRun, benchmark_training, training_tables

    with show_progress() as progress:
        results = benchmark_training(
            TrainerRun(**settings), cases.split(","), models.split(",") if models else (), repeats,
            out, progress,
        )  # fmt: skip
    _print_results(results, training_tables, out, as_json)


def _print_results(
    results: dict[str, Any],
    tables: Callable[[Sequence[dict[str, Any]]], Iterator[str]],
    out: Path,
    as_json: bool,
) -> None:
    if as_json:
        print_json(results)
        return
    print_line(", ".join(f"{k} {v}" for k, v in results["machine"].items()))
    for line in tables(results["rows"]):
        print_line(line)
    print_line(f"\nresults: {out}")


@command.command("table")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--kind", default="full", show_default=True,
              type=click.Choice(["full", "summary", "agreement", "strength"]),
              help="For attacks: all of it, or one of the tables of the docs.")  # fmt: skip
def table(file: Path, kind: str) -> None:
    """Print the results in FILE, written by one of the benchmarks, as a Markdown table."""
    from buttress.bench.attacks import ATTACK_TABLES
    from buttress.bench.repeats import read_results
    from buttress.bench.training import training_tables

    rows = read_results(file)
    is_training = any("trainer" in row for row in rows)
    for line in training_tables(rows) if is_training else ATTACK_TABLES[kind](rows):
        print_line(line)
