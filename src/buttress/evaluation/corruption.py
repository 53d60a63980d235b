"""Corruptions as entries of a suite: how they are written, and their images."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from buttress.data import Dataset
from buttress.errors import UserError
from buttress.records.corruption import CORRUPTION
from buttress.registry import canonical

SEVERITIES = (1, 2, 3, 4, 5)
LIST, ALL = "corruptions", "all"
SEED = 0  # corrupted images are a data set: the seed of the attacks does not change them


def parse_corruption(text: str) -> dict[str, Any]:
    """``corruptions``, ``corruptions:3``, ``corruption:fog`` or ``corruption:fog:3``."""
    head, *rest = text.split(":")
    name = ALL if canonical(head) == LIST else rest.pop(0) if rest else ""
    severity = rest.pop(0) if rest else None
    if not name or rest or (severity is not None and not severity.isdigit()):
        raise UserError(
            f"corruptions are written corruption:fog:3, corruption:fog, corruptions or "
            f"corruptions:3, but got {text!r}"
        )
    return {CORRUPTION: name, "severity": None if severity is None else int(severity)}


def corruption_names(name: str) -> list[str]:
    """The corruptions that a name stands for: the 15 common ones, or one of any kind."""
    registry = import_module("buttress.data.corruptions").CORRUPTIONS
    if canonical(name) == ALL:
        return list(registry.names("common"))
    return [registry.entry(name).name]


def corrupted_images(data: Dataset, name: str, severity: int) -> Dataset:
    """The images of a data set, corrupted: the official ones where they are found."""
    found = import_module("buttress.data.corruptions").corrupted(data, name, severity, seed=SEED)
    assert isinstance(found, Dataset)
    assert found.ids.equal(data.ids)
    return found
