"""A folder with weights and a description: what `buttress export` and timm's hub write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import Field

from buttress.config import Spec
from buttress.errors import UserError
from buttress.models.loading.core import (
    DEFAULT_SHAPE,
    MODEL_NAME_FORMS,
    SOURCES,
    ModelRequest,
    ModelSource,
    TrainedWeights,
)
from buttress.models.loading.weight_file import read_named_checkpoint, read_state_dict
from buttress.results.model_code import is_function_name

DESCRIPTION_FILE = "buttress.json"
TIMM_CONFIG_FILE = "config.json"  # of timm on the Hugging Face hub
# Where weights lie, those that can hold no code first.
WEIGHT_FILES = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)  # fmt: skip


class ModelDescriptionFile(Spec):
    """What ``buttress.json`` says about the weights beside it."""

    model: str
    num_classes: int = Field(ge=1)
    image_size: int = Field(ge=1)
    in_channels: int = Field(default=3, ge=1)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    model_args: dict[str, Any] = Field(default_factory=dict)

    def shape(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in DEFAULT_SHAPE}


@SOURCES.register("folder", form="FOLDER")
class FolderSource(ModelSource):
    """An exported model (`buttress.json`), timm's form (`config.json`), or weights and a model."""

    def matches(self, name: str) -> bool:
        return Path(name).is_dir() and not (Path(name) / "run.json").is_file()

    def open(self, name: str, request: ModelRequest) -> TrainedWeights:
        return open_folder(Path(name), request)


def open_folder(path: Path, request: ModelRequest) -> TrainedWeights:
    card = read_description(path)
    if card is None and request.model is None:
        if not any((path / name).is_file() for name in WEIGHT_FILES):
            raise UserError(
                f"{path} is neither a run (no run.json) nor an exported model (no "
                f"{DESCRIPTION_FILE} or {WEIGHT_FILES[0]})"
            )
        raise UserError(
            f"{path} contains weights only; name their architecture with --model (model=): "
            f"{MODEL_NAME_FORMS}"
        )
    file = next((path / name for name in WEIGHT_FILES if (path / name).is_file()), None)
    if file is None:
        raise UserError(
            f"{path} has a {DESCRIPTION_FILE} or {TIMM_CONFIG_FILE}, but none of "
            f"{', '.join(WEIGHT_FILES)}"
        )
    if card is None:
        assert request.model is not None
        return read_named_checkpoint(file, request.model, request)
    return _weights_of_description(file, card, request)


def _weights_of_description(
    file: Path, description: ModelDescriptionFile, request: ModelRequest
) -> TrainedWeights:
    model = description.model
    if is_function_name(model) and not (request.model and is_function_name(request.model)):
        raise UserError(
            f"{file.parent} was trained with the custom model {model!r}. Code is only run "
            "when you name it yourself: pass --model FILE.py:FUNCTION"
        )
    if is_function_name(model) and request.model:
        model = request.model
    elif request.model is not None and request.model != model:
        raise UserError(f"{file.parent} already defines model {model!r}; omit {request.model!r}")
    for name, expected in description.shape().items():
        if request.given_shape().get(name, expected) != expected and name != "image_size":
            requested = request.given_shape()[name]
            raise UserError(f"{file.parent} has {name}={expected}, but got {name}={requested}")
    return TrainedWeights(
        read_state_dict(file),
        str(file),
        model,
        request.shape(description.shape()),
        *request.normalization(description.mean, description.std),
        keep_normalization=request.has_normalization,
        options={**description.model_args, **request.options},
    )


def read_description(path: Path) -> ModelDescriptionFile | None:
    """The description in a folder, ours or timm's, if there is one."""
    if (path / DESCRIPTION_FILE).is_file():
        raw = _read_json_object(path / DESCRIPTION_FILE)
        known = ModelDescriptionFile.model_fields  # others may be added
        fields = {key: value for key, value in raw.items() if key in known}
        return ModelDescriptionFile.parse(fields, str(path / DESCRIPTION_FILE))
    if (path / TIMM_CONFIG_FILE).is_file():
        raw = _read_json_object(path / TIMM_CONFIG_FILE)
        if "architecture" in raw:
            return _read_timm_config(raw, str(path / TIMM_CONFIG_FILE))
    return None


def _read_timm_config(raw: dict[str, Any], origin: str) -> ModelDescriptionFile:
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
    return ModelDescriptionFile.parse(card, origin)


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise UserError(f"{path} cannot be read as JSON") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} must contain a JSON object, but contains a {type(raw).__name__}")
    return raw


PREFIXES = ("hf:", "hf-hub:", "hf_hub:")  # the last two are timm's
SAFE_FILES = ["*.safetensors", "*.safetensors.index.json", DESCRIPTION_FILE, TIMM_CONFIG_FILE]
PICKLED_FILES = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]


@SOURCES.register("hf", form="hf:OWNER/NAME")
class HubSource(ModelSource):
    """A model on the Hugging Face hub (``@REVISION`` after it picks one); no code of it is run."""

    def matches(self, name: str) -> bool:
        return name.startswith(PREFIXES)

    def open(self, name: str, request: ModelRequest) -> TrainedWeights:
        return open_folder(download_snapshot(name), request)


def download_snapshot(hub_name: str) -> Path:
    """The files of a repository in the hub's own cache; safetensors if it has them."""
    name, _, revision = hub_name.partition(":")[2].partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"a model on the hub is written hf:OWNER/NAME, but got {hub_name!r}")
    folder = _download(name, revision or None, SAFE_FILES)
    if not list(folder.glob("*.safetensors")):
        folder = _download(name, revision or None, SAFE_FILES + PICKLED_FILES)
    return folder


def _download(name: str, revision: str | None, patterns: list[str]) -> Path:
    import huggingface_hub

    download = huggingface_hub.snapshot_download
    try:
        return Path(download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub, the network and the disk each fail in their own way
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"hf:{name} could not be downloaded ({type(error).__name__}: {reason}). Check the "
            f"name; a private model needs `hf auth login`. Offline, run `hf download {name} "
            "--local-dir DIR` on a connected machine and pass DIR"
        ) from None
