"""Claims: predicates on a table of numbers, and the word that the data allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

from buttress.registry import Registry
from buttress.study.table import View

Word = Literal["holds", "does not hold", "undecided"]
SURE = 0.95  # share of the replicates that must agree


class Predicate(Protocol):
    """A statement about a table. It says what it needs, whether it is true, and on what grounds."""

    def columns(self) -> Sequence[str]:
        """The columns it reads."""
        ...

    def holds(self, view: View) -> bool: ...

    def evidence(self, view: View) -> str:
        """The numbers that decide it, in one sentence."""
        ...


CLAIMS: Registry[type[Predicate]] = Registry("claim")


class Cannot(Exception):
    """A table does not hold what a predicate asks about; the text says what is missing."""


class Verdict(NamedTuple):
    """What the data say about a claim."""

    word: Word
    evidence: str
    share: float | None  # of the replicates in which it is true


def judge(predicate: Predicate, view: View, replicates: Sequence[View]) -> Verdict:
    """The word for a claim: decided only if nearly all replicates agree with the table itself.

    A replicate that cannot say, such as one whose values are all alike, agrees with neither word.
    """
    try:
        truth, grounds = check(predicate, view), predicate.evidence(view)
    except Cannot as reason:
        return Verdict("undecided", str(reason), None)
    said = [_check_if_it_can(predicate, other) for other in replicates]
    share = float(np.mean([word is True for word in said]))
    if float(np.mean([word is truth for word in said])) >= SURE:
        return Verdict("holds" if truth else "does not hold", grounds, share)
    return Verdict("undecided", grounds, share)


def _check_if_it_can(predicate: Predicate, view: View) -> bool | None:
    try:
        return check(predicate, view)
    except Cannot:
        return None


def check(predicate: Predicate, view: View) -> bool:
    """Whether a predicate is true of a table; a table without its numbers cannot say."""
    for column in predicate.columns():
        if column not in view.columns:
            raise Cannot(f"there is no column {column}")
    return bool(predicate.holds(view))


def known(view: View, column: str, chosen: np.ndarray | None = None) -> np.ndarray:
    """The values of some rows; all must be there."""
    values = view.values(column)
    mask = np.ones(len(values), dtype=bool) if chosen is None else chosen
    if not mask.any():
        raise Cannot("no row of the table is of the kind that it speaks of")
    lacking = [view.name(int(i)) for i in np.flatnonzero(mask & np.isnan(values))]
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise Cannot(f"{column} is not measured yet for {', '.join(lacking[:3])}{more}")
    return values[mask]
