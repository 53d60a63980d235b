"""The tensors of a checkpoint file, whatever they are wrapped in; no code in it is ever run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from buttress.errors import UserError
from buttress.models.reading import read_tensors

# Where checkpoints keep the weights, the trained ones before their running average.
WRAPPERS = (
    "state_dict", "model_state_dict", "model", "net", "network", "weights", "params",
    "ema", "state_dict_ema", "model_ema", "ema_state_dict", "ema_model",
)  # fmt: skip
INDEX = ".index.json"  # of a checkpoint in several files
DEEPEST = 8  # levels of wrapping that are looked into


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file; a file that needs code to be read is refused."""
    if path.name.endswith(INDEX):
        return _read_shards(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = read_tensors(path)
    except Exception as error:  # a damaged file can fail in any way
        raise UserError(_why_unreadable(path, error)) from None
    return unwrap(content, path)


def _read_shards(index: Path) -> dict[str, Tensor]:
    """Weights in several files beside an index, as Hugging Face writes large models."""
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted({str(file) for file in places.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{index} must be an index with a `weight_map` of names to files") from None
    found: dict[str, Tensor] = {}
    for file in files:
        if file != Path(file).name or file in ("", ".", ".."):
            raise UserError(f"{index} names {file!r}, which is no file beside it")
        if not (index.parent / file).is_file():
            raise UserError(f"{index} needs {file} beside it, which is not there")
        found.update(read_weights(index.parent / file))
    if absent := [name for name in places if name not in found]:
        raise UserError(f"{index} promises {some(absent)}, which its files do not hold")
    return found


def unwrap(content: Any, path: Path, depth: int = 0) -> dict[str, Tensor]:
    """The state dict inside dicts and lists."""
    found = _find(content, depth)
    if found is not None:
        return found
    if isinstance(content, Mapping):
        raise UserError(f"{path} holds no weights; its keys are {some(map(str, content))}")
    raise UserError(f"{path} holds a {type(content).__name__}; it must hold a state dict")


def _find(content: Any, depth: int = 0) -> dict[str, Tensor] | None:
    if depth > DEEPEST:
        return None
    if isinstance(content, Mapping):
        for key in WRAPPERS:
            if isinstance(content.get(key), (Mapping, list, tuple)):
                return _find(content[key], depth + 1)
        if found := {str(k): v for k, v in content.items() if isinstance(v, Tensor)}:
            return found
        return _only(content.values(), depth)
    if isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        return _only(content, depth)
    return None


def _only(contents: Iterable[Any], depth: int) -> dict[str, Tensor] | None:
    """The one thing among several that holds weights under names; with two it is not clear."""
    inside = [c for c in contents if isinstance(c, (Mapping, list, tuple))]
    found = [f for f in (_find(c, depth + 1) for c in inside) if f]
    return found[0] if len(found) == 1 else None


def _why_unreadable(path: Path, error: Exception) -> str:
    needed = re.search(r"GLOBAL ([\w.]+)", str(error))
    if needed or "weights_only" in str(error):
        what = f"it refers to {needed[1]}" if needed else "it is not plain tensors"
        return (
            f"{path} needs code to be read ({what}), and code in a checkpoint is never run; where "
            "you trust the file, save only its weights: torch.save(model.state_dict(), ...)"
        )
    return f"{path} is damaged or not a checkpoint: {' '.join(str(error).split())[:200]}"


def some(names: Iterable[str], at_most: int = 3) -> str:
    """The first of many names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - at_most} more" if len(listed) > at_most else ""
    return ", ".join(listed[:at_most]) + more
