"""The one place where a file of tensors is unpickled: nothing in it runs or is taken on trust."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SLACK = 1 << 20  # bytes that a file may unpack to beyond its own size: torch itself packs nothing
LARGEST_REPEATED = 256 << 20  # bytes of a tensor that repeats what is stored once
MOST_VALUES = 1 << 22  # in nested dicts and lists, each counted as often as it is referred to


def read_tensors(path: Path) -> Any:
    """What torch saved to a file.

    Raises:
        Exception: of many kinds, if the file is damaged, would run code, or would take far more
            memory than it has bytes.
    """
    sizes = _record_sizes(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    _count(content, {})
    for tensor in _tensors(content, set()):
        _check_plain(tensor, sizes)
    return content


def _record_sizes(path: Path) -> set[int] | None:
    """The sizes of the parts of a file in the usual form; None for the form of old torch."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        sizes = [info.file_size for info in archive.infolist()]
        if sum(sizes) > (own := path.stat().st_size) + SLACK:
            raise ValueError(f"it unpacks to {sum(sizes):,} bytes, more than the {own:,} it has")
        if (bad := archive.testzip()) is not None:  # torch does not look
            raise ValueError(f"its part {bad} does not match its checksum")
    return set(sizes)


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values there are, counted as often as a walk through all of them meets them."""
    if not isinstance(value, (dict, list, tuple)):
        return 1
    if id(value) not in known:
        known[id(value)] = MOST_VALUES  # what contains itself is without end
        inside = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(v, known) for v in inside)
    if known[id(value)] >= MOST_VALUES:
        raise ValueError("its lists and dicts contain each other without end")
    return known[id(value)]


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item, seen)


def _check_plain(tensor: Tensor, sizes: set[int] | None) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise ValueError("it holds a tensor that is sparse, quantised or without numbers")
    stored = tensor.untyped_storage().nbytes()
    if math.prod(tensor.shape) * tensor.element_size() > max(stored, LARGEST_REPEATED):
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has {stored} bytes in the file")
    # Some versions of torch take the size of a part from the pickle and read past its end.
    if sizes is not None and stored and stored not in sizes:
        raise ValueError(f"a tensor has {stored} bytes, but no part of the file has as many")
