"""Surrogates as they are written: ``identity``, ``FILE.py:FUNCTION``, ``SUBMODULE=...``.

Nothing here needs torch, so that a misspelt surrogate is refused at once.
"""

from __future__ import annotations

from pathlib import Path

from buttress.errors import UserError
from buttress.results.model_code import is_function_name

IDENTITY = "identity"


def split_surrogate(text: str) -> dict[str, str]:
    """``quantize=identity,jpeg=soft.py:jpeg`` -> stand-in by submodule; an empty name is found."""
    items: dict[str, str] = {}
    for item in text.split(","):
        submodule, _, stand_in = item.strip().rpartition("=")
        if stand_in != IDENTITY and not is_function_name(stand_in):
            raise UserError(
                "a surrogate must be identity, FILE.py:FUNCTION, or either after SUBMODULE=, "
                f"but got {item.strip()!r}"
            )
        if submodule in items:
            raise UserError(
                f"surrogate {text!r} has two stand-ins for "
                f"{f'submodule {submodule!r}' if submodule else 'the preprocessing'}"
            )
        items[submodule] = stand_in
    return items


def check_surrogate(text: str) -> None:
    """Raise on a surrogate that is not written so, and on a file that does not exist."""
    for stand_in in split_surrogate(text).values():
        path = stand_in.rpartition(":")[0]
        if path and not Path(path).expanduser().is_file():
            raise UserError(f"surrogate {stand_in!r}: the file {path} does not exist")
