"""MODEL: the model that a command is about, and the options that say more of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from buttress.errors import UserError

if TYPE_CHECKING:
    from buttress.data import Dataset
    from buttress.models.core import Classifier
    from buttress.models.loading.core import ModelRequest

F = TypeVar("F", bound=Callable[..., Any])

MODEL_OPTION = click.option(
    "--model", help="The architecture of a checkpoint: a name, timm:NAME or file.py:function."
)
PRETRAINED_OPTION = click.option(
    "--pretrained", is_flag=True, help="Get the weights that timm publishes for timm:NAME."
)
MODEL_OPTIONS = (
    MODEL_OPTION,
    click.option("--model-arg", "model_args", multiple=True, metavar="KEY=VALUE",
                 help="A further argument of the model, e.g. --model-arg activation=silu."),
    PRETRAINED_OPTION,
    click.option("--mean", metavar="M,M,M",
                 help="Per-channel mean that normalizes the input of a checkpoint."),
    click.option("--std", metavar="S,S,S",
                 help="Per-channel standard deviation that normalizes the input."),
)  # fmt: skip


def model_options(command: F) -> F:
    """The options of every command that takes a model from anywhere."""
    for option in reversed(MODEL_OPTIONS):
        command = option(command)
    return command


def parse_floats(text: str | None, option: str) -> tuple[float, ...] | None:
    """``0.5`` or ``0.49,0.48,0.45``."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--{option} must be numbers like 0.5 or 0.49,0.48,0.45, got {text!r}"
        ) from None


def source_options(values: dict[str, Any], images: Dataset | None = None) -> ModelRequest:
    """What the options say; where they say nothing, the images do."""
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
    """The model that MODEL names, for these images."""
    from buttress.models.core import move_to_device
    from buttress.models.loading.load import load_requested_model

    return move_to_device(
        load_requested_model(model_source, source_options(values, images)), device
    )


CommandFunction = Callable[..., Any]
WORKERS = click.IntRange(1, 100_000)  # more do not fit in what divides by them


def runner_options(function: CommandFunction) -> CommandFunction:
    """What becomes a `RunnerOptions`."""
    for option in (
        click.option("--device", default="auto", show_default=True),
        click.option("--retry", is_flag=True, help="Try runs again that failed before."),
        click.option("--gpus-per-run", type=float, default=0.0, show_default=True, help="On Ray."),
        click.option("--cpus-per-run", type=float, default=1.0, show_default=True, help="On Ray."),
        click.option("--address", "ray_address",
                     help="Of a Ray cluster; RAY_ADDRESS or the one that runs here."),
        click.option("--on", "backend", type=click.Choice(["local", "ray"]), default="local",
                     show_default=True),
        click.option("--workers", type=WORKERS,
                     help="Runs at once; one per GPU or core."),
    ):  # fmt: skip
        function = option(function)
    return function
