"""A comparison in plain words."""

from __future__ import annotations

from buttress.comparison.compare import Comparison
from buttress.comparison.match import WORST
from buttress.comparison.rows import Row


def sentences(found: Comparison) -> list[str]:
    """The answer, and what could have been found: the worst case, or the one row there is."""
    main = next((r for r in found.rows if r.name == WORST), found.rows[0])
    others = [r for r in found.rows if r is not main]
    real = [f"{spelt(r)} ({points(r.difference)})" for r in others if r.is_real]
    chance = [spelt(r) for r in others if not r.is_real]
    said = [verdict(main, found.has_seeds)]
    if real:
        said.append(f"Also real: {', '.join(real)}.")
    if chance:
        said.append(f"No difference was shown for {', '.join(chance)}.")
    said.append(reach(main, found))
    if found.doubted:
        said.append(f"Numbers of {' and '.join(found.doubted)} cannot be trusted: see the notes.")
    return said


def verdict(row: Row, has_seeds: bool) -> str:
    """Whether the difference of a row is real."""
    low, high = row.interval
    span = f"95% interval of A - B {100 * low:+.1f} to {points(high)}, {p_value(row.p_holm)}"
    what = f"under {row.name}" if row.name != WORST else "in the worst case"
    what = "without an attack" if row.name == "clean" else what
    if not row.is_real:
        return f"No difference was shown {what}: A - B is {points(row.difference)} ({span})."
    better, worse = ("A", "B") if row.difference > 0 else ("B", "A")
    mean = " on average over seeds" if has_seeds else ""
    size = f"{100 * abs(row.difference):.1f} points"
    return f"The difference {what} is real: {better} is {size} above {worse}{mean} ({span})."


def reach(row: Row, found: Comparison) -> str:
    """The smallest difference that could have been found."""
    if found.has_seeds:
        counts = f"{len(found.a.members)} and {len(found.b.members)} seeds"
        return f"With {counts} that spread like these, {_found(row)}."
    if row.smallest >= 1:
        return f"{found.images} images are too few to show any difference."
    return f"With {found.images} images and this much agreement, {_found(row)}."


def _found(row: Row) -> str:
    return f"a true difference of {100 * row.smallest:.1f} points is found 80 times in 100"


def spelt(row: Row) -> str:
    return row.name.replace("_", " ") if row.name == WORST else row.name


def points(share: float) -> str:
    """``+3.1 points``; zero has no sign."""
    text = f"{100 * share:+.1f}"
    return f"{'0.0' if text in ('+0.0', '-0.0') else text} points"


def p_value(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"
