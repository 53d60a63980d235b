"""Checkpoints that notice when they are damaged."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from buttress.errors import CorruptFile
from buttress.files import replacing
from buttress.models.reading import read_tensors

FORMAT = 1


def tree_digest(content: Any) -> str:
    """A hash over every tensor and value of nested dicts and lists, in a fixed order."""
    found = hashlib.sha256()

    def visit(path: str, value: Any) -> None:
        found.update(path.encode())
        if isinstance(value, Tensor):
            plain = value.detach().cpu().contiguous()
            found.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
            found.update(plain.flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                visit(f"{path}/{key}", value[key])
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                visit(f"{path}/{index}", item)
        else:
            found.update(repr(value).encode())

    visit("", content)
    return found.hexdigest()


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Writes a checkpoint whole or not at all, with a hash of its content."""
    body = {"format": FORMAT, **content}
    with replacing(path) as temporary:
        torch.save({**body, "sha256": tree_digest(body)}, temporary)


def load_checkpoint(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Reads what `save_checkpoint` wrote; raises `CorruptFile` if it is not whole."""
    try:
        content = read_tensors(path)
        body = {k: v for k, v in content.items() if k != "sha256"}
        whole = content["sha256"] == tree_digest(body)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch, zip and pickle each raise kinds of their own
        raise CorruptFile(f"{path} is truncated or not a checkpoint ({_short(error)})") from None
    if not whole:
        raise CorruptFile(f"{path} does not match its own checksum")
    return _moved(body, device)


def _moved(value: Any, device: str | torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {k: _moved(v, device) for k, v in value.items()}
    if isinstance(value, list):
        return [_moved(v, device) for v in value]
    return value


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
