"""Checkpoint files with checksums, loaded without running code."""

from __future__ import annotations

import hashlib
import io
import math
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from buttress.errors import CorruptFileError
from buttress.system.files import atomic_write

MAX_EXPANSION = 1 << 20  # bytes beyond the file's own size: torch itself packs nothing
MAX_EXPANDED_TENSOR = 256 << 20  # bytes of a tensor that repeats what is stored once
MAX_VALUES = 1 << 22  # in nested dicts and lists, each counted as often as it is referred to


def load_tensors_safely(path: Path) -> Any:
    """Load what torch saved to a file, without running code.

    Raises:
        Exception: of many kinds, if the file is damaged, would run code, or would take far more
            memory than it has bytes.
    """
    sizes = _archive_sizes(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    _check_nesting(content, {})
    for tensor in _iterate_tensors(content, set()):
        _check_tensor_storage(tensor, sizes)
    return content


def _archive_sizes(path: Path) -> set[int] | None:
    """The sizes of the parts of a file in the usual form; None for the form of old torch."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        sizes = [info.file_size for info in archive.infolist()]
        if sum(sizes) > (file_size := path.stat().st_size) + MAX_EXPANSION:
            raise ValueError(
                f"the file unpacks to {sum(sizes):,} bytes, but has only {file_size:,}"
            )
        if (bad := archive.testzip()) is not None:  # torch does not look
            raise ValueError(f"entry {bad} of the file does not match its checksum")
    return set(sizes)


def _check_nesting(value: Any, counts: dict[int, int]) -> int:
    """How many values there are, counted as often as a walk through all of them meets them."""
    if not isinstance(value, (dict, list, tuple)):
        return 1
    if id(value) not in counts:
        counts[id(value)] = MAX_VALUES  # a container that contains itself is infinite
        items = value.values() if isinstance(value, dict) else value
        counts[id(value)] = 1 + sum(_check_nesting(v, counts) for v in items)
    if counts[id(value)] >= MAX_VALUES:
        raise ValueError(
            "the file contains nested lists or dicts that refer to themselves or are too deep"
        )
    return counts[id(value)]


def _iterate_tensors(value: Any, visited: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)) and id(value) not in visited:
        visited.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            yield from _iterate_tensors(item, visited)


def _check_tensor_storage(tensor: Tensor, sizes: set[int] | None) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise ValueError("the file contains a sparse, quantized or meta tensor")
    stored = tensor.untyped_storage().nbytes()
    if math.prod(tensor.shape) * tensor.element_size() > max(stored, MAX_EXPANDED_TENSOR):
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} is backed by only {stored} bytes"
        )
    # Some versions of torch take the size of a part from the pickle and read past its end.
    if sizes is not None and stored and stored not in sizes:
        raise ValueError(
            f"a tensor declares {stored} bytes, but no entry of the file has that size"
        )


FORMAT = 1


def content_digest(content: Any) -> str:
    """A hash over every tensor and value of nested dicts and lists, in a fixed order."""
    hasher = hashlib.sha256()

    def visit(path: str, value: Any) -> None:
        hasher.update(path.encode())
        if isinstance(value, Tensor):
            cpu_value = value.detach().cpu().contiguous()
            hasher.update(f"{cpu_value.dtype}{tuple(cpu_value.shape)}".encode())
            hasher.update(cpu_value.flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                visit(f"{path}/{key}", value[key])
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                visit(f"{path}/{index}", item)
        else:
            hasher.update(repr(value).encode())

    visit("", content)
    return hasher.hexdigest()


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint atomically, with a hash of its content; equal content is equal bytes."""
    body = {"format": FORMAT, **content}
    # To memory: given a path, torch stores its name, and an archive that an interrupt leaves open
    # writes its end when it is deleted, which must not fail.
    archive = io.BytesIO()
    torch.save(_intern_strings({**body, "sha256": content_digest(body)}), archive)
    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        stream.write(archive.getbuffer())


def _intern_strings(value: Any) -> Any:
    """The same value with one object per text: pickle writes an object once, equal ones again."""
    if type(value) is dict:
        return {_intern_strings(k): _intern_strings(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_intern_strings(item) for item in value)
    return sys.intern(value) if type(value) is str else value


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint of `save_checkpoint`; raise `CorruptFileError` if it is damaged."""
    try:
        content = load_tensors_safely(path)
        body = {k: v for k, v in content.items() if k != "sha256"}
        is_intact = content["sha256"] == content_digest(body)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch, zip and pickle each raise kinds of their own
        raise CorruptFileError(
            f"{path} is truncated or not a checkpoint ({_short_reason(error)})"
        ) from None
    if not is_intact:
        raise CorruptFileError(f"{path} does not match its checksum; the file is damaged")
    return body


def _short_reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
