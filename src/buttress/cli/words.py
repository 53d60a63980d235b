"""Numbers as a person reads them."""

from __future__ import annotations

UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(value: float, unit: str = "") -> str:
    """``1.2 TFLOP``."""
    for size, letter in UNITS:
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def duration(seconds: float | None) -> str:
    """``40 s``, ``12 min``, ``5.5 h``, ``12 days``."""
    if seconds is None:
        return "an unknown time"
    for size, word in ((172800.0, "days"), (5400.0, "h"), (120.0, "min")):
        if seconds >= size:
            return f"{seconds / {'days': 86400, 'h': 3600, 'min': 60}[word]:.3g} {word}"
    return f"{seconds:.3g} s"
