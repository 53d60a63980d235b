"""Many tests at once."""

from __future__ import annotations

from collections.abc import Sequence

from buttress.errors import UserError


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p-value corrected for all of them (Holm 1979, step down), in the order given.

    Calling those below 0.05 real makes a mistake in at most 5 of 100 families of tests, however the
    tests depend on each other.
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise UserError(f"`0 <= p <= 1` must hold for every p-value, but got {wrong[0]}")
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    corrected, least = [0.0] * len(order), 0.0
    for place, index in enumerate(order):
        least = max(least, min(1.0, (len(order) - place) * p_values[index]))
        corrected[index] = least
    return corrected
