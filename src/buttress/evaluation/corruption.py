"""Corruptions as entries of a suite: how they are written, and their images."""

from __future__ import annotations

from typing import Any

from buttress.data import Dataset
from buttress.data.corruptions import CORRUPTIONS, corrupted
from buttress.data.corruptions.dataset import VERSION
from buttress.errors import UserError
from buttress.records.corruption import CORRUPTION, OFFICIAL
from buttress.registry import canonical

LIST, ALL = "corruptions", "all"
SEED = 0  # corrupted images are a data set: the seed of the attacks does not change them


def parse_corruption(text: str) -> dict[str, Any]:
    """``corruptions``, ``corruptions:3``, ``corruption:fog`` or ``corruption:fog:3``."""
    head, *rest = text.split(":")
    name = ALL if canonical(head) == LIST else rest.pop(0) if rest else ""
    severity = rest.pop(0) if rest else None
    if not name or rest or (severity is not None and not severity.isdigit()):
        raise UserError(
            "corruptions are written corruption:fog:3, corruption:fog, corruptions or "
            f"corruptions:3, but got {text!r}"
        )
    return {CORRUPTION: name, "severity": None if severity is None else int(severity)}


def corruption_names(name: str) -> list[str]:
    """The corruptions that a name stands for: the 15 common ones, or one of any kind."""
    if canonical(name) == ALL:
        return CORRUPTIONS.names("common")
    return [CORRUPTIONS.entry(name).name]


def corrupted_images(data: Dataset, corruption: str, severity: int) -> Dataset:
    """The images of a data set, corrupted: the official ones where they are found."""
    return corrupted(data, corruption, severity, seed=SEED)


def images_used(data: Dataset, corruption: str, severity: int) -> str:
    """What tells a record of official images from one of ours, and ours from older ones."""
    name = corrupted_images(data, corruption, severity).name
    return name if name.endswith(OFFICIAL) else f"{name} version {VERSION}"
