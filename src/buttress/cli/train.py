"""`buttress train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buttress.cli.checks import check_available_dataset, check_model, check_threat_options
from buttress.cli.console import (
    format_percent,
    format_with_interval,
    print_json,
    print_line,
    show_progress,
)
from buttress.cli.options import (
    DEVICE_OPTION,
    IMAGE_SIZE_OPTION,
    JSON_OPTION,
    MODEL_ARG_OPTION,
    RECIPE_CALLBACK,
    add_options,
    checked,
)
from buttress.errors import UserError

if TYPE_CHECKING:
    from buttress.results.run import Run

# The options of every command that trains a run.
run_options = add_options(
    click.option("--data", required=True, callback=checked(check_available_dataset),
                 help="Dataset name, or folder:PATH."),
    click.option("--out", required=True, type=click.Path(path_type=Path),
                 help="Folder of the run."),
    click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
                 help="Override a recipe key, e.g. --set optimizer.lr=0.01."),
    click.option("--eps", metavar="EPS", help="Train with this eps, e.g. 4/255."),
    click.option("--norm", metavar="NORM", help="Norm of --eps: Linf, L2 or L1 (default: Linf)."),
    MODEL_ARG_OPTION,
    click.option("--seed", default=0, show_default=True),
    click.option("--limit", type=int, help="Use only the first N training images."),
    IMAGE_SIZE_OPTION,
    DEVICE_OPTION,
    click.option("--devices", default=1, show_default=True,
                 help="Processes that share one run (data-parallel). On a CPU, models with "
                 "BatchNorm train slower so; `study run --workers` trains several runs at once."),
    click.option("--log", "logs", multiple=True,
                 help="tensorboard, wandb or mlflow; epochs saves the weights of each epoch."),
    click.option("--compile", is_flag=True, help="Compile the model with torch.compile."),
    JSON_OPTION,
)  # fmt: skip


@click.command("train")
@click.option("--model", required=True, help="Model name, timm:NAME or file.py:function.",
              callback=checked(lambda name: check_model(name, is_architecture=True)))  # fmt: skip
@click.option("--recipe", required=True, callback=RECIPE_CALLBACK, help="Recipe name or YAML file.")
@run_options
def command(
    model: str, recipe: str, data: str, out: Path, overrides: tuple[str, ...], eps: str | None,
    norm: str | None, model_args: tuple[str, ...], as_json: bool, logs: tuple[str, ...],
    **options: Any,
) -> None:  # fmt: skip
    """Train a model. Run the same command again to resume."""
    overrides = add_threat_override(overrides, eps, norm)

    from buttress.config import apply_overrides
    from buttress.training import train
    from buttress.training.loggers import create_logger

    with show_progress() as progress:
        run = train(
            model, data, recipe, out, overrides=overrides,
            model_args=apply_overrides({}, model_args),
            loggers=[create_logger(name) for name in logs], progress=progress, **options,
        )  # fmt: skip
    print_run(run, as_json)


def add_threat_override(
    overrides: tuple[str, ...], eps: str | None, norm: str | None
) -> tuple[str, ...]:
    """The overrides of a recipe with the threat model of --eps and --norm."""
    if norm is not None and eps is None:
        raise UserError(f"--norm needs --eps, e.g. --norm {norm} --eps 0.5")
    threat = check_threat_options(None, eps, norm)
    return overrides if threat is None else (*overrides, f"threat={threat}")


def print_run(run: Run, as_json: bool, **extra: Any) -> None:
    """Print the result of training on rank zero: one line, or JSON with ``extra`` in it."""
    from buttress.training.distributed import is_rank_zero

    if not is_rank_zero():
        return
    summary = run.summary
    if as_json:
        print_json({"run": str(run.path), "key": run.spec.key(), **extra, **summary})
        return
    robust = summary["best_val_robust"]
    intervals = [summary.get(f"best_val_{kind}_interval") for kind in ("clean", "robust")]
    robust_text = "" if robust is None else f", {format_with_interval(robust, intervals[1])} robust"
    images_text = f"{'TEST' if summary['selected_on'] == 'test' else 'validation'} images"
    if intervals[0] is not None:
        images_text = f"{summary['val_images']} {images_text}, 95% intervals"
    clean_text = format_with_interval(summary["best_val_clean"], intervals[0])
    print_line(
        f"{run.path}: {summary['epochs']} epochs in {summary['seconds']:.0f} s; best epoch "
        f"{summary['best_epoch']}: {clean_text} clean{robust_text} ({images_text})"
    )
    last = summary["last_val_robust"]
    if robust is not None and last is not None and robust > last:
        print_line(
            f"The last epoch has {format_percent(last)} robust accuracy, {robust - last:.1%} below "
            "the best epoch (robust overfitting)."
        )
    for warning in summary["warnings"]:
        print_line(f"Warning: {warning}")
