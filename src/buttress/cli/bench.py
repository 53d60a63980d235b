"""`buttress bench`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from buttress.cli.console import print_json, print_line, show_progress
from buttress.system.files import write_text


@click.group("bench")
def command() -> None:
    """Benchmark attacks and training against other installed libraries."""


@command.command("attacks")
@click.option("--models", default="small,slim,vit", show_default=True)
@click.option("--cases", default="pgd,autoattack,workers", show_default=True)
@click.option("--data", "dataset", default="cifar10", show_default=True)
@click.option("--checkpoint", help="FILE=file.py:function, weights of the small model.")
@click.option("--images", type=int, help="Images per case (default: a few minutes' worth).")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True,
              help="Repeats per tool; a tool that takes over a minute runs once.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/bench-attacks.json"),
              show_default=True, help="JSON file for the results.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def attacks(
    models: str, cases: str, dataset: str, checkpoint: str | None, images: int | None, repeats: int,
    out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Compare PGD-20 and AutoAttack: seconds, passes, memory and robust accuracy.

    Models are trained for a few minutes the first time.
    """
    from buttress.bench import attacks as benchmark
    from buttress.bench.attack_case import ToolRun
    from buttress.bench.models import train_if_missing
    from buttress.bench.repeats import describe_machine
    from buttress.data import load_dataset

    names, rows = models.split(","), []
    base = ToolRun("", "", images or 0, "", data=dataset, checkpoint=checkpoint)
    benchmark_cases = list(
        benchmark.benchmark_cases(names, cases.split(","), base, len(load_dataset(dataset, "test")))
    )
    with show_progress() as progress:
        for name in names:
            if not (name == "small" and checkpoint):
                train_if_missing(name, dataset, progress)
        for case in benchmark_cases:
            rows += benchmark.run_case(case, repeats, progress)
            write_text(out, json.dumps({"machine": describe_machine(), "rows": rows}, indent=1))
    if as_json:
        print_json({"machine": describe_machine(), "rows": rows})
        return
    print_line(", ".join(f"{k} {v}" for k, v in describe_machine().items()))
    for line in benchmark.attack_tables(rows):
        print_line(line)
    print_line(f"\nresults: {out}")


@command.command("training")
@click.option("--models", default="resnet_18_slim,vit_mini", show_default=True)
@click.option("--data", default="cifar10", show_default=True)
@click.option("--images", type=click.IntRange(1), default=1024, show_default=True)
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True,
              help="Repeats per tool; a tool that takes over a minute runs once.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/bench-training.json"),
              show_default=True, help="JSON file for the results.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def training(
    models: str, data: str, images: int, epochs: int, repeats: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Compare one epoch of PGD-10 adversarial training: seconds and accuracy."""
    from buttress.bench import training as benchmark
    from buttress.bench.repeats import describe_machine
    from buttress.bench.training import TrainerRun

    rows: list[dict[str, object]] = []
    with show_progress() as progress:
        for model in models.split(","):
            rows += benchmark.run_trainers(
                TrainerRun("", model, images, epochs, data), repeats, progress
            )
            write_text(out, json.dumps({"machine": describe_machine(), "rows": rows}, indent=1))
    if as_json:
        print_json({"machine": describe_machine(), "rows": rows})
        return
    print_line(", ".join(f"{k} {v}" for k, v in describe_machine().items()))
    for line in benchmark.training_tables(rows):
        print_line(line)
    print_line(f"\nresults: {out}")
