"""Options that several commands share: the model, and how runs are executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from buttress.cli.checks import (
    check_available_dataset,
    check_device,
    check_model,
    check_preset,
    check_split,
)
from buttress.cli.suggestions import command_advice
from buttress.errors import UserError

if TYPE_CHECKING:
    from buttress.data import Dataset
    from buttress.models.core import Classifier
    from buttress.models.loading.core import ModelRequest

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class SuggestingGroup(click.Group):
    """A group that names the nearest commands when there is none of a name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = str(args[0])
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            guess = command_advice(str(self.name), name, self.list_commands(ctx))
            ctx.fail(f"No such command {name!r}{guess}")
        return super().resolve_command(ctx, args)


def checked(check: Callable[[str], object]) -> Callable[..., Any]:
    """A callback that checks a value before any command runs, and so before torch is imported."""

    def check_value(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        if value is not None and not ctx.resilient_parsing:
            check(value)
        return value

    return check_value


def parse_eot_samples(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> int | str | None:
    """A count from 1 on, or ``auto``."""
    if value is None or value == "auto":
        return value
    if not value.isdigit() or int(value) < 1:
        raise UserError(f"--eot-samples must be a count of at least 1, or auto, but got {value!r}")
    return int(value)


def check_each(check: Callable[[str], object]) -> Callable[..., Any]:
    """Like `checked`, for an argument that can be given several times."""

    def check_values(
        ctx: click.Context, parameter: click.Parameter, values: tuple[Any, ...]
    ) -> Any:
        for value in () if ctx.resilient_parsing else values:
            check(str(value))
        return values

    return check_values


def add_options(*options: Decorator) -> Decorator:
    """Decorator that adds several options, in the order of the help text."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
MODEL_ARGUMENT = click.argument("model_source", metavar="MODEL", callback=checked(check_model))
MODEL_OPTION = click.option(
    "--model", callback=checked(lambda name: check_model(name, is_architecture=True)),
    help="Architecture of a checkpoint: a name, timm:NAME or file.py:function.",
)  # fmt: skip
MODEL_ARG_OPTION = click.option(
    "--model-arg", "model_args", multiple=True, metavar="KEY=VALUE",
    help="Model argument; repeatable, e.g. --model-arg activation=silu.",
)  # fmt: skip
PRETRAINED_OPTION = click.option(
    "--pretrained", is_flag=True, help="Load timm's pretrained weights for timm:NAME."
)
IMAGE_SIZE_OPTION = click.option(
    "--image-size", type=int, help="Resize images to this height and width."
)
DEVICE_OPTION = click.option(
    "--device", default="auto", show_default=True, callback=checked(check_device),
    help="auto (the fastest here), cpu, cuda or mps.",
)  # fmt: skip
RECIPE_CALLBACK = checked(lambda name: check_preset("recipe", name))
# The threat model in the form that other tools take: an eps, and a norm.
threat_options = add_options(
    click.option("--threat", metavar="THREAT", help="Threat model, e.g. Linf:8/255 or patch:5."),
    click.option("--eps", metavar="EPS", help="Eps alone, e.g. 8/255 or 0.5."),
    click.option("--norm", metavar="NORM", help="Norm of --eps: Linf, L2 or L1 (default: Linf)."),
)
SCALE_OPTION = click.option(
    "--scale", help="smoke, digits, mini or paper (default: the smallest of the study)."
)
WORKERS_OPTION = click.option(
    "--workers", type=click.IntRange(1, 100_000),  # an upper limit against overflow
    help="Number of parallel runs (default: one per GPU or CPU core).",
)  # fmt: skip

# The options that describe a model.
model_options = add_options(
    MODEL_OPTION,
    MODEL_ARG_OPTION,
    PRETRAINED_OPTION,
    click.option("--mean", metavar="M,M,M",
                 help="Per-channel mean used to normalize the input of a checkpoint."),
    click.option("--std", metavar="S,S,S",
                 help="Per-channel standard deviation used to normalize the input."),
)  # fmt: skip
# The options that make a `RunnerOptions`.
runner_options = add_options(
    WORKERS_OPTION,
    click.option("--on", "backend", type=click.Choice(["local", "ray"]), default="local",
                 show_default=True, help="Where to execute the runs."),
    click.option("--address", "ray_address",
                 help="Address of the Ray cluster (default: RAY_ADDRESS or a local one)."),
    click.option("--cpus-per-run", type=float, default=1.0, show_default=True,
                 help="CPUs per run, with --on ray."),
    click.option("--gpus-per-run", type=float, default=0.0, show_default=True,
                 help="GPUs per run, with --on ray."),
    click.option("--retry", is_flag=True, help="Run failed runs again."),
    DEVICE_OPTION,
)  # fmt: skip
# The options that choose what a model is evaluated on.
image_options = add_options(
    click.option("--data", "dataset", callback=checked(check_available_dataset),
                 help="Dataset to evaluate on (default: that of the run)."),
    click.option("--split", default="test", show_default=True, callback=checked(check_split)),
)  # fmt: skip
seed_and_batch_options = add_options(
    click.option("--seed", default=0, show_default=True),
    click.option("--batch-size", default=256, show_default=True),
)


def parse_floats(text: str | None, option: str) -> tuple[float, ...] | None:
    """``0.5`` or ``0.49,0.48,0.45``."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--{option} must be one number or one per channel, e.g. 0.49,0.48,0.45, got {text!r}"
        ) from None


def source_options(values: dict[str, Any], images: Dataset | None = None) -> ModelRequest:
    """Make the request for a model from the options; the images give the default shape."""
    from buttress.config import apply_overrides
    from buttress.models.loading.core import DEFAULT_SHAPE, ModelRequest

    defaults = DEFAULT_SHAPE
    if images is not None:
        channels, size, _ = images.shape
        defaults = {"num_classes": images.num_classes, "image_size": size, "in_channels": channels}
    return ModelRequest(
        model=values["model"],
        mean=parse_floats(values["mean"], "mean"),
        std=parse_floats(values["std"], "std"),
        options=apply_overrides({}, values["model_args"]),
        pretrained=values["pretrained"],
        default_shape=defaults,
    )


def load_model_argument(
    model_source: str, values: dict[str, Any], images: Dataset, device: str
) -> Classifier:
    """Load the model that MODEL names, for these images."""
    from buttress.models.core import move_to_device
    from buttress.models.loading.load import load_requested_model

    return move_to_device(
        load_requested_model(model_source, source_options(values, images)), device
    )
