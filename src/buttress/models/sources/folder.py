"""A folder with weights and a description: what `buttress export` and timm's hub write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field

from buttress.errors import UserError
from buttress.models.sources.checkpoint import weights_of
from buttress.models.sources.core import NAMED, SOURCES, Source, Trained, Wanted, is_function
from buttress.models.weights import read_weights
from buttress.spec import Spec

CARD = "buttress.json"
CONFIG = "config.json"  # of timm on the Hugging Face hub
# Where weights lie, those that can hold no code first.
WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)  # fmt: skip


class Card(Spec):
    """What ``buttress.json`` says about the weights beside it."""

    model: str
    num_classes: int = Field(ge=1)
    image_size: int = Field(ge=1)
    in_channels: int = Field(default=3, ge=1)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    model_args: dict[str, Any] = Field(default_factory=dict)

    def shape(self) -> dict[str, int]:
        return {
            "num_classes": self.num_classes,
            "image_size": self.image_size,
            "in_channels": self.in_channels,
        }


@SOURCES.register("folder", form="FOLDER")
class Folder(Source):
    """An exported model (`buttress.json`), timm's form (`config.json`), or weights and a model."""

    def reads(self, what: str) -> bool:
        return Path(what).is_dir() and not (Path(what) / "run.json").is_file()

    def open(self, what: str, wanted: Wanted) -> Trained:
        return open_folder(Path(what), wanted)


def open_folder(path: Path, wanted: Wanted) -> Trained:
    card = read_card(path)
    if card is None and wanted.model is None:
        if not any((path / name).is_file() for name in WEIGHTS):
            raise UserError(
                f"{path} is not a run: it has no run.json; nor has it a {CARD} or "
                f"{WEIGHTS[0]}, as an exported model has"
            )
        raise UserError(f"{path} holds weights only; name their model with model=, as {NAMED}")
    file = next((path / name for name in WEIGHTS if (path / name).is_file()), None)
    if file is None:
        raise UserError(f"{path} has a {CARD} or {CONFIG}, but none of {', '.join(WEIGHTS)}")
    if card is None:
        assert wanted.model is not None
        return weights_of(file, wanted.model, wanted)
    return _described(file, card, wanted)


def _described(file: Path, card: Card, wanted: Wanted) -> Trained:
    model = card.model
    if is_function(model) and not (wanted.model and is_function(wanted.model)):
        raise UserError(
            f"{file.parent} belongs to the network {model!r}, and code is run only where you name "
            "it yourself: give model=FILE.py:FUNCTION"
        )
    if is_function(model) and wanted.model:
        model = wanted.model
    elif wanted.model is not None and wanted.model != model:
        raise UserError(f"{file.parent} knows its own model {model!r}; leave out {wanted.model!r}")
    for name, own in card.shape().items():
        if wanted.said().get(name, own) != own and name != "image_size":
            asked = wanted.said()[name]
            raise UserError(f"{file.parent} has {name}={own}, but got {name}={asked}")
    return Trained(
        read_weights(file),
        str(file),
        model,
        wanted.shape(card.shape()),
        wanted.mean if wanted.is_normalised else card.mean,
        wanted.std if wanted.is_normalised else card.std,
        is_normalised=wanted.is_normalised,
        options={**card.model_args, **wanted.options},
    )


def read_card(path: Path) -> Card | None:
    """The description in a folder, ours or timm's, if there is one."""
    if (path / CARD).is_file():
        raw = _read(path / CARD)
        known = {key: raw[key] for key in Card.model_fields if key in raw}  # others may be added
        return Card.parse(known, str(path / CARD))
    if (path / CONFIG).is_file():
        raw = _read(path / CONFIG)
        return _timm_card(raw, str(path / CONFIG)) if "architecture" in raw else None
    return None


def _timm_card(raw: dict[str, Any], where: str) -> Card:
    facts = raw.get("pretrained_cfg")
    facts = {**raw, **(facts if isinstance(facts, dict) else {})}
    size = facts.get("input_size")
    channels, side = size[:2] if isinstance(size, list) and len(size) == 3 else (3, 224)
    card = {
        "model": f"timm:{raw['architecture']}",
        "num_classes": raw.get("num_classes", facts.get("num_classes")),
        "image_size": side,
        "in_channels": channels,
        "mean": facts.get("mean"),
        "std": facts.get("std"),
        "model_args": raw.get("model_args") or {},
    }
    return Card.parse(card, where)


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise UserError(f"{path} cannot be read as JSON") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold a JSON object, but holds a {type(raw).__name__}")
    return raw
