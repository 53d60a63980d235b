"""Claims: predicates on a table, and whether they hold, do not hold or are undecided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

from buttress.registry import Registry
from buttress.studies.table import ValueTable

ClaimOutcome = Literal["holds", "does not hold", "undecided"]
REPLICATE_AGREEMENT = 0.95  # fraction of bootstrap tables that must agree


class Predicate(Protocol):
    """A statement about a table: columns, truth value and evidence."""

    def columns(self) -> Sequence[str]:
        """Columns that the claim needs."""
        ...

    def holds(self, table: ValueTable) -> bool: ...

    def evidence(self, table: ValueTable) -> str:
        """Summarize the values that decide the claim."""
        ...


CLAIMS: Registry[type[Predicate]] = Registry("claim")


class UndecidableClaim(Exception):
    """A table lacks values that a claim needs; the text says which."""


class ClaimVerdict(NamedTuple):
    """Outcome of a claim with its evidence."""

    outcome: ClaimOutcome
    evidence: str
    replicate_share: float | None  # of the bootstrap tables in which it is true


def assess_claim(
    predicate: Predicate, view: ValueTable, replicates: Sequence[ValueTable]
) -> ClaimVerdict:
    """Assess a claim: decided if nearly all bootstrap tables agree with the table.

    A replicate that cannot say, such as one whose values are all alike, agrees with neither word.
    """
    try:
        is_true, evidence = evaluate_predicate(predicate, view), predicate.evidence(view)
    except UndecidableClaim as reason:
        return ClaimVerdict("undecided", str(reason), None)
    replicate_results = [_predicate_or_none(predicate, other) for other in replicates]
    replicate_share = float(
        np.mean([replicate_result is True for replicate_result in replicate_results])
    )
    if (
        float(np.mean([replicate_result is is_true for replicate_result in replicate_results]))
        >= REPLICATE_AGREEMENT
    ):
        return ClaimVerdict("holds" if is_true else "does not hold", evidence, replicate_share)
    return ClaimVerdict("undecided", evidence, replicate_share)


def _predicate_or_none(predicate: Predicate, view: ValueTable) -> bool | None:
    try:
        return evaluate_predicate(predicate, view)
    except UndecidableClaim:
        return None


def evaluate_predicate(predicate: Predicate, view: ValueTable) -> bool:
    """Evaluate a predicate; raise `UndecidableClaim` if values are missing."""
    for column in predicate.columns():
        if column not in view.columns:
            raise UndecidableClaim(f"there is no column {column}")
    return bool(predicate.holds(view))


def measured_values(
    view: ValueTable, column: str, row_mask: np.ndarray | None = None
) -> np.ndarray:
    """Values of some rows; raise if one is missing."""
    values = view.values(column)
    mask = np.ones(len(values), dtype=bool) if row_mask is None else row_mask
    if not mask.any():
        raise UndecidableClaim("no row matches the condition of the claim")
    missing_rows = [view.row_name(int(i)) for i in np.flatnonzero(mask & np.isnan(values))]
    if missing_rows:
        more_text = f" and {len(missing_rows) - 3} more" if len(missing_rows) > 3 else ""
        raise UndecidableClaim(
            f"{column} is not measured yet for {', '.join(missing_rows[:3])}{more_text}"
        )
    return values[mask]
