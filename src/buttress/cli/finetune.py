"""`buttress finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from buttress.cli.console import say, showing
from buttress.cli.network import MODEL, PRETRAINED
from buttress.cli.train import run_options, say_run


@click.command("finetune")
@click.argument("source")
@click.option("--recipe", help="A recipe's name or a YAML file; the run's own if SOURCE is a run.")
@MODEL
@PRETRAINED
@run_options
def command(
    source: str, recipe: str | None, model: str | None, pretrained: bool, data: str, out: Path,
    changes: tuple[str, ...], model_args: tuple[str, ...], as_json: bool, logs: tuple[str, ...],
    **how: Any,
) -> None:  # fmt: skip
    """Train on from SOURCE, a run or any other trained model, on other images.

    `buttress list sources` shows every way to name one. The same command again resumes where it
    stopped.
    """
    from buttress.spec import override
    from buttress.training import finetune
    from buttress.training.logs import create_listener

    with showing() as progress:
        run = finetune(
            source, data, recipe, out, model=model, pretrained=pretrained,
            model_args=override({}, model_args), changes=changes, progress=progress,
            listeners=[create_listener(name) for name in logs], **how,
        )  # fmt: skip
    origin = run.header["finetuned_from"]
    if not as_json:
        say(f"from {origin['source']}: {origin['loaded']} tensors loaded")
        for what in ("resized", "new", "unused"):
            if origin[what]:
                say(f"{what}: {', '.join(origin[what])}")
    say_run(run, as_json, finetuned_from=origin)
