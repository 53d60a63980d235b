"""WHAT: the model that a command is about, and the options that say more of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from buttress.errors import UserError

if TYPE_CHECKING:
    from buttress.data import Dataset
    from buttress.models.core import Classifier
    from buttress.models.sources.core import Wanted

F = TypeVar("F", bound=Callable[..., Any])

MODEL = click.option(
    "--model", help="The architecture of a checkpoint: a name, timm:NAME or file.py:function."
)
PRETRAINED = click.option(
    "--pretrained", is_flag=True, help="Get the weights that timm publishes for timm:NAME."
)
OPTIONS = (
    MODEL,
    click.option("--model-arg", "model_args", multiple=True, metavar="KEY=VALUE",
                 help="A further argument of the model, e.g. --model-arg activation=silu."),
    PRETRAINED,
    click.option("--mean", metavar="M,M,M", help="What a checkpoint's images are lessened by."),
    click.option("--std", metavar="S,S,S", help="What they are divided by then."),
)  # fmt: skip


def model_options(command: F) -> F:
    """The options of every command that takes a model from anywhere."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def numbers(text: str | None, what: str) -> tuple[float, ...] | None:
    """``0.5`` or ``0.49,0.48,0.45``."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--{what} must be numbers like 0.5 or 0.49,0.48,0.45, got {text!r}"
        ) from None


def wanted_of(said: dict[str, Any], images: Dataset | None = None) -> Wanted:
    """What the options say; where they say nothing, the images do."""
    from buttress.models.sources.core import USUAL, Wanted
    from buttress.spec import override

    usual = USUAL
    if images is not None:
        channels, size, _ = images.shape
        usual = {"num_classes": images.num_classes, "image_size": size, "in_channels": channels}
    return Wanted(
        model=said["model"],
        mean=numbers(said["mean"], "mean"),
        std=numbers(said["std"], "std"),
        options=override({}, said["model_args"]),
        pretrained=said["pretrained"],
        usual=usual,
    )


def network(what: str, said: dict[str, Any], images: Dataset, device: str) -> Classifier:
    """The model that WHAT names, for these images."""
    from buttress.models.core import on_device
    from buttress.models.load import load_wanted

    return on_device(load_wanted(what, wanted_of(said, images)), device)
