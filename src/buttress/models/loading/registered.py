"""``NAME``: an architecture of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from buttress.errors import UnknownNameError, UserError
from buttress.models.core import (
    Classifier,
    ImageSizes,
    create_model,
    find_model,
    is_known,
    suggest_models,
)
from buttress.models.factory import Shape, call_factory
from buttress.models.loading.core import SOURCES, ModelRequest, ModelSource

UNTRAINED_WARNING = "the weights are random: the model is not trained"


@SOURCES.register("name", form="NAME")
class RegisteredSource(ModelSource):
    """A registered architecture with random weights; a file or folder of that name is preferred."""

    is_architecture = True

    def matches(self, name: str) -> bool:
        return is_known(name) and not Path(name).exists()

    def build(self, name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
        entry = find_model(name)
        sizes: ImageSizes = entry.metadata["sizes"]
        if shape["image_size"] not in sizes:
            raise UserError(
                f"model {entry.name!r} supports image_size {sizes}, but got "
                f"image_size={shape['image_size']}"
            )
        return call_factory(entry.name, entry.value, shape, options)

    def open(self, name: str, request: ModelRequest) -> Classifier:
        if not is_known(name):
            guess = suggest_models(name)
            raise UnknownNameError(
                f"{name!r} is neither a file, a run nor a registered model{guess} See "
                "`buttress list models` and `buttress list sources`"
            )
        return create_requested_model(name, request, UNTRAINED_WARNING)


def create_requested_model(name: str, request: ModelRequest, *warnings: str) -> Classifier:
    """Create the architecture of a name with random weights, as the request describes it."""
    request.reject_model_argument(name)
    model = create_model(
        name, **request.shape(), mean=request.mean, std=request.std, options=request.options, seed=0
    )
    model.warnings += warnings
    return model
