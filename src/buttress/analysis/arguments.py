"""Arguments of analyses come from a command line: what they must be, said in one way."""

from __future__ import annotations

from buttress.errors import UserError


def whole(least: int, **given: object) -> None:
    """Refuses what is not a whole number of at least ``least``."""
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(
                f"`{name}` must be a whole number of at least {least}, but got {name}={value!r}"
            )
