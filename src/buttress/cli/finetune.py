"""`buttress finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from buttress.cli.checks import check_model
from buttress.cli.console import print_line, show_progress
from buttress.cli.options import MODEL_OPTION, PRETRAINED_OPTION, RECIPE_CALLBACK, checked
from buttress.cli.train import add_threat_override, print_run, run_options


@click.command("finetune")
@click.argument("source", callback=checked(check_model))
@click.option("--recipe", callback=RECIPE_CALLBACK,
              help="Recipe name or YAML file (default: the recipe of the run).")  # fmt: skip
@MODEL_OPTION
@PRETRAINED_OPTION
@run_options
def command(
    source: str, recipe: str | None, model: str | None, pretrained: bool, data: str, out: Path,
    overrides: tuple[str, ...], eps: str | None, norm: str | None, model_args: tuple[str, ...],
    as_json: bool, logs: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Fine-tune SOURCE, a run or any other trained model, on a dataset.

    `buttress list sources` shows every way to name one. Run the same command
    again to resume.
    """
    overrides = add_threat_override(overrides, eps, norm)

    from buttress.config import apply_overrides
    from buttress.training import finetune
    from buttress.training.loggers import create_logger

    with show_progress() as progress:
        run = finetune(
            source, data, recipe, out, model=model, pretrained=pretrained,
            model_args=apply_overrides({}, model_args), overrides=overrides, progress=progress,
            loggers=[create_logger(name) for name in logs], **options,
        )  # fmt: skip
    origin = run.header["finetuned_from"]
    if not as_json:
        print_line(f"from {origin['source']}: {origin['loaded']} tensors loaded")
        for group in ("resized", "initialized", "unused"):
            if origin[group]:
                print_line(f"{group}: {', '.join(origin[group])}")
    print_run(run, as_json, finetuned_from=origin)
