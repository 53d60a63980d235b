"""Values that may differ between the scales of a study: one for all, or one for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from buttress.errors import UserError

Scale = Literal["smoke", "mini", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)


def check_scale(name: str) -> Scale:
    for scale in SCALES:
        if scale == name.lower():
            return scale
    raise UserError(f"a scale is one of {', '.join(SCALES)}, but got {name!r}")


def at(value: Any, scale: Scale) -> Any:
    """The value for a scale, from ``value`` or ``{smoke: ..., mini: ..., paper: ...}``.

    Inside a mapping of other keys each value may differ by scale. A scale that is left out takes
    the value of the next larger one, so that what is written for `paper` alone holds everywhere.
    """
    if not isinstance(value, Mapping):
        return value
    if not is_by_scale(value):
        return {key: at(inner, scale) for key, inner in value.items()}
    larger = SCALES[SCALES.index(scale) :]
    for candidate in (*larger, *reversed(SCALES[: SCALES.index(scale)])):
        if candidate in value:
            return value[candidate]
    return None


def is_by_scale(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and set(value) <= set(SCALES)
