"""Saved pictures of analyses, with the sentence that says what is on them."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from buttress.errors import CorruptFile
from buttress.files import read_json

LARGEST = 4_000_000  # bytes; a larger drawing would make the page slow to open


@dataclass(frozen=True)
class Picture:
    """One analysis: its picture as a data address, or why it has none."""

    name: str
    says: str = ""  # its caption, for those who see it and for those who do not
    address: str = ""
    reason: str = ""  # why it does not apply

    @property
    def alt(self) -> str:
        return self.says or f"Figure of the analysis {self.name}"


def read_picture(file: Path) -> Picture | None:
    """What ``NAME.json`` says, with ``NAME.svg`` beside it; None if the file cannot be read."""
    try:
        content = read_json(file)
    except (CorruptFile, OSError):
        return None
    name = str(content.get("analysis") or file.stem)
    if reason := content.get("does_not_apply"):
        return Picture(name, reason=str(reason))
    says = str(content.get("says") or "")
    return Picture(name, says, svg_address(file.with_suffix(".svg")))


def read_pictures(files: Iterable[Path]) -> tuple[Picture, ...]:
    return tuple(found for f in files if (found := read_picture(f)) is not None)


def svg_address(path: Path) -> str:
    """An SVG file as a data address; empty if there is none that can be shown.

    A browser runs no script and follows no link of a drawing that is shown as an image.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    if len(content) > LARGEST or b"<svg" not in content[:2000]:
        return ""
    return f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}"
