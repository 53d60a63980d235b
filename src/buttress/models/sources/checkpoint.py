"""A file of weights, with the model named beside it."""

from __future__ import annotations

from pathlib import Path

from buttress.errors import UserError
from buttress.models.sources.core import NAMED, SOURCES, Source, Trained, Wanted
from buttress.models.weights import read_weights


@SOURCES.register("checkpoint", form="FILE")
class Checkpoint(Source):
    """Anyone's weights (.pt, .pth, .ckpt, .safetensors, an index of shards) with a model named."""

    def reads(self, what: str) -> bool:
        return Path(what).is_file() and Path(what).suffix.lower() != ".onnx"

    def open(self, what: str, wanted: Wanted) -> Trained:
        if wanted.model is None:
            raise UserError(
                f"{what} holds weights only; say which model they belong to with model=, as {NAMED}"
            )
        return weights_of(Path(what), wanted.model, wanted)


def weights_of(file: Path, model: str, wanted: Wanted) -> Trained:
    """The weights of a file for a model that the user named."""
    return Trained(
        read_weights(file),
        str(file),
        model,
        wanted.shape(),
        wanted.mean,
        wanted.std,
        is_normalised=wanted.is_normalised,
        options=wanted.options,
    )
