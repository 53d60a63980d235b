"""``zoo:NAME``: adversarially trained small models that come with the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buttress.errors import UnknownNameError
from buttress.models.loading.core import SOURCES, ModelRequest, ModelSource, TrainedWeights
from buttress.models.loading.folder import DESCRIPTION_FILE, open_folder
from buttress.registry import close_names_text

PREFIX = "zoo:"
ZOO = Path(__file__).parents[1] / "zoo"  # a folder per model: weights, description and card


@dataclass(frozen=True)
class ZooCard:
    """What ``buttress.json`` of a model of the zoo says about its training and accuracy."""

    name: str
    model: str
    dataset: str
    recipe: str
    images: int  # test images of all accuracies
    accuracy: Mapping[str, float]  # suite entry -> accuracy of the stored weights
    sample_accuracy: Mapping[str, float]  # the same on the test images of cifar10_sample
    weights_sha256: str


@SOURCES.register("zoo", form="zoo:NAME")
class ZooSource(ModelSource):
    """A small adversarially trained model of the package, e.g. zoo:vgg_mini; needs no network."""

    def matches(self, name: str) -> bool:
        return name.startswith(PREFIX)

    def open(self, name: str, request: ModelRequest) -> TrainedWeights:
        return open_folder(zoo_folder(name), request)


def list_zoo() -> list[str]:
    """Names of all models of the zoo, as `load_model` takes them."""
    return sorted(f"{PREFIX}{file.parent.name}" for file in ZOO.glob(f"[!.]*/{DESCRIPTION_FILE}"))


def zoo_folder(name: str) -> Path:
    """The folder of a model of the zoo."""
    if name not in list_zoo():
        guess = close_names_text(name, list_zoo())
        raise UnknownNameError(f"unknown model {name!r}{guess} See `buttress list zoo`")
    return ZOO / name.removeprefix(PREFIX)


def read_zoo_card(name: str) -> ZooCard:
    """Read the verified accuracies of a model of the zoo."""
    raw: dict[str, Any] = json.loads(
        (zoo_folder(name) / DESCRIPTION_FILE).read_text(encoding="utf-8")
    )
    trained = raw["training"]
    return ZooCard(
        name, raw["model"], trained["dataset"], trained["recipe"], raw["images"],
        raw["accuracy"], raw["sample"], raw["weights_sha256"],
    )  # fmt: skip
