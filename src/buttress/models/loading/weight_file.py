"""Reading of state dicts from checkpoint files, without running code."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from buttress.errors import UserError
from buttress.models.factory import Shape
from buttress.models.loading.checkpoint import load_tensors_safely
from buttress.models.loading.core import (
    MODEL_NAME_FORMS,
    SOURCES,
    ModelRequest,
    ModelSource,
    TrainedWeights,
)
from buttress.models.loading.robust_wrn import infer_robust_wrn

# Where checkpoints keep the weights, the trained ones before their running average.
STATE_DICT_KEYS = (
    "state_dict", "model_state_dict", "model", "net", "network", "weights", "params",
    "ema", "state_dict_ema", "model_ema", "ema_state_dict", "ema_model",
)  # fmt: skip
INDEX_SUFFIX = ".index.json"  # of a checkpoint in several files
MAX_NESTING = 8  # levels of wrapping that are looked into


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read the state dict of a checkpoint file; reject files that need code to be read."""
    if path.name.endswith(INDEX_SUFFIX):
        return _read_sharded(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = load_tensors_safely(path)
    except Exception as error:  # a damaged file can fail in any way
        raise UserError(_unreadable_message(path, error)) from None
    return extract_state_dict(content, path)


def _read_sharded(index: Path) -> dict[str, Tensor]:
    """Weights in several files beside an index, as Hugging Face writes large models."""
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted({str(file) for file in weight_map.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{index} must be an index with a `weight_map` of names to files") from None
    tensors: dict[str, Tensor] = {}
    for file in files:
        if file != Path(file).name or file in ("", ".", ".."):
            raise UserError(f"{index} refers to {file!r}, which is not a file in the same folder")
        if not (index.parent / file).is_file():
            raise UserError(f"{index} refers to {file}, but that file does not exist")
        tensors.update(read_state_dict(index.parent / file))
    if missing := [name for name in weight_map if name not in tensors]:
        raise UserError(f"{index} lists {abbreviate(missing)}, but its files do not contain them")
    return tensors


def extract_state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """The state dict inside dicts and lists."""
    state_dict = _find_state_dict(content)
    if state_dict is not None:
        return state_dict
    if isinstance(content, Mapping):
        raise UserError(
            f"{path} contains no state dict; its keys are {abbreviate(map(str, content))}"
        )
    raise UserError(f"{path} must contain a state dict, but contains a {type(content).__name__}")


def _find_state_dict(content: Any, depth: int = 0) -> dict[str, Tensor] | None:
    if depth > MAX_NESTING:
        return None
    if isinstance(content, Mapping):
        for key in STATE_DICT_KEYS:
            if isinstance(content.get(key), (Mapping, list, tuple)):
                return _find_state_dict(content[key], depth + 1)
        if tensors := {str(k): v for k, v in content.items() if isinstance(v, Tensor)}:
            return tensors
        return _single_state_dict(content.values(), depth)
    if isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        return _single_state_dict(content, depth)
    return None


def _single_state_dict(contents: Iterable[Any], depth: int) -> dict[str, Tensor] | None:
    """Return the only state dict among several values, or None if there are two."""
    containers = [c for c in contents if isinstance(c, (Mapping, list, tuple))]
    state_dicts = [f for f in (_find_state_dict(c, depth + 1) for c in containers) if f]
    return state_dicts[0] if len(state_dicts) == 1 else None


def _unreadable_message(path: Path, error: Exception) -> str:
    missing_global = re.search(r"GLOBAL ([\w.]+)", str(error))
    if missing_global or "weights_only" in str(error):
        reason = f"it refers to {missing_global[1]}" if missing_global else ""
        return (
            f"{path} can only be read by running code ({reason or 'it contains more than tensors'})"
            ", which Buttress never does; if you trust the file, save its weights alone: "
            "torch.save(model.state_dict(), ...)"
        )
    return f"{path} is damaged or not a checkpoint: {' '.join(str(error).split())[:200]}"


def abbreviate(names: Iterable[str], limit: int = 3) -> str:
    """The first of many names, and how many more there are."""
    all_names = list(names)
    more = f" and {len(all_names) - limit} more" if len(all_names) > limit else ""
    return ", ".join(all_names[:limit]) + more


@SOURCES.register("checkpoint", form="FILE")
class CheckpointSource(ModelSource):
    """Anyone's weights (.pt, .pth, .ckpt, .safetensors, an index of shards) with a model named.

    Those of the RobustWRN authors are recognized and need no model.
    """

    def matches(self, name: str) -> bool:
        return Path(name).is_file() and Path(name).suffix.lower() != ".onnx"

    def open(self, name: str, request: ModelRequest) -> TrainedWeights:
        if request.model is not None:
            return read_named_checkpoint(Path(name), request.model, request)
        with contextlib.suppress(UserError):  # with a model named, the error of the file is shown
            weights = read_state_dict(Path(name))
            if inferred := infer_robust_wrn(weights):
                model, shape = inferred
                return _requested_weights(weights, name, model, request, shape)
        raise UserError(
            f"{name} contains weights only; name their architecture with --model "
            f"(model=): {MODEL_NAME_FORMS}"
        )


def read_named_checkpoint(file: Path, model: str, request: ModelRequest) -> TrainedWeights:
    """The weights of a file for a model that the user named."""
    return _requested_weights(read_state_dict(file), str(file), model, request)


def _requested_weights(
    weights: dict[str, Tensor],
    file: str,
    model: str,
    request: ModelRequest,
    shape: Shape | None = None,
) -> TrainedWeights:
    return TrainedWeights(
        weights,
        file,
        model,
        request.shape(shape),
        request.mean,
        request.std,
        keep_normalization=request.has_normalization,
        options=request.options,
    )
