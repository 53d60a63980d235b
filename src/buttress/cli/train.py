"""`buttress train`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from buttress.cli.console import percent, ranged, say, say_json, showing

if TYPE_CHECKING:
    from buttress.records.run import Run

F = TypeVar("F", bound=Callable[..., Any])

RUN_OPTIONS = (
    click.option("--data", required=True, help="A data set's name, or folder:PATH."),
    click.option("--out", required=True, type=click.Path(path_type=Path), help="The run's folder."),
    click.option("--set", "changes", multiple=True, metavar="KEY=VALUE",
                 help="Change the recipe, e.g. --set optimiser.lr=0.01."),
    click.option("--model-arg", "model_args", multiple=True, metavar="KEY=VALUE",
                 help="A further argument of the model, e.g. --model-arg drop_path=0.05."),
    click.option("--seed", default=0, show_default=True),
    click.option("--limit", type=int, help="Train on the first images only."),
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps."),
    click.option("--devices", default=1, show_default=True,
                 help="Processes that share the work; two are faster than two threads."),
    click.option("--log", "logs", multiple=True,
                 help="tensorboard, wandb or mlflow; epochs keeps the weights of each epoch."),
    click.option("--compile", is_flag=True, help="Compile the network with torch."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
)  # fmt: skip


def run_options(command: F) -> F:
    """The options of every command that trains a run."""
    for option in reversed(RUN_OPTIONS):
        command = option(command)
    return command


@click.command("train")
@click.option("--model", required=True, help="A name, timm:NAME or file.py:function.")
@click.option("--recipe", required=True, help="A recipe's name or a YAML file.")
@run_options
def command(
    model: str, recipe: str, data: str, out: Path, changes: tuple[str, ...],
    model_args: tuple[str, ...], as_json: bool, logs: tuple[str, ...], **how: Any,
) -> None:  # fmt: skip
    """Train a model. The same command again resumes where it stopped."""
    from buttress.spec import override
    from buttress.training import train
    from buttress.training.logs import create_listener

    with showing() as progress:
        run = train(
            model, data, recipe, out, changes=changes, model_args=override({}, model_args),
            listeners=[create_listener(name) for name in logs], progress=progress, **how,
        )  # fmt: skip
    say_run(run, as_json)


def say_run(run: Run, as_json: bool, **more: Any) -> None:
    """How training went: a line, or JSON with ``more`` in it; of several processes one speaks."""
    from buttress.training.ranks import is_first

    if not is_first():
        return
    summary = run.summary
    if as_json:
        say_json({"run": str(run.path), "key": run.spec.key(), **more, **summary})
        return
    robust = summary["best_val_robust"]
    spans = [summary.get(f"best_val_{kind}_interval") for kind in ("clean", "robust")]
    tail = "" if robust is None else f", {ranged(robust, spans[1])} under attack"
    said = f"{'TEST' if summary['selected_on'] == 'test' else 'validation'} images"
    if spans[0] is not None:
        said = f"{summary['val_images']} {said}, 95% intervals"
    say(
        f"{run.path}: {summary['epochs']} epochs in {summary['seconds']:.0f} s; best epoch "
        f"{summary['best_epoch']}: {ranged(summary['best_val_clean'], spans[0])} clean{tail} "
        f"({said})"
    )
    last = summary["last_val_robust"]
    if robust is not None and last is not None and robust > last:
        say(f"The last epoch has {percent(last)}: {robust - last:.1%} lost by training on.")
    for warning in summary["warnings"]:
        say(f"Warning: {warning}")
