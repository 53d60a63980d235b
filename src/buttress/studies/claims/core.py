"""Claims: predicates on a table, and whether they hold, do not hold or are undecided."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from buttress.registry import Registry
from buttress.results.study_result import ClaimOutcome
from buttress.studies.claims.conditions import Condition, Draws, ValueComparison
from buttress.studies.table import ValueTable

FLOOR = 0.005  # accuracies that are all below it, or all above one minus it, decide nothing
NOT_MEASURED = "not measured yet"
SAMPLE_FACTORS = (2, 4, 8, 16, 32, 64)  # times the seeds and images of a tie
MAX_LISTED = 3  # rows or comparisons that a reason lists


class UndecidableClaim(Exception):
    """A table cannot decide a claim; the text says why."""


class Predicate(ABC):
    """A statement about a table, made of comparisons of its values."""

    def columns(self) -> Sequence[str]:
        """Columns that the claim needs: its field ``column`` is one of them or several."""
        column: str | list[str] = getattr(self, "column", [])
        return [column] if isinstance(column, str) else column

    @abstractmethod
    def condition(self, table: ValueTable) -> Condition:
        """The comparisons that decide the claim."""

    @abstractmethod
    def evidence(self, table: ValueTable) -> str:
        """Summarize the values that decide the claim, in the units of their columns."""

    def holds(self, table: ValueTable) -> bool:
        """Whether it is true of the values as they stand, whatever their uncertainty."""
        for column in self.columns():
            if column not in table.columns:
                raise UndecidableClaim(f"there is no column {column}")
        return bool(self.condition(table).truth()[0])


CLAIMS: Registry[type[Predicate]] = Registry("claim")


class ClaimAssessment(NamedTuple):
    """Outcome of a claim with its evidence."""

    outcome: ClaimOutcome
    evidence: str
    reason: str = ""  # why it is undecided
    replicate_share: float | None = None  # of the redrawn tables in which it is true


def assess_claim(predicate: Predicate, table: ValueTable) -> ClaimAssessment:
    """Assess a claim: a firm outcome is wrong with a probability of 5% at most.

    It is undecided, with the reason, if a value is missing, not trustworthy or without uncertainty,
    if all accuracies are at the floor or the ceiling, or if rows tie within their uncertainty.
    """
    table = replace(table, used=set())
    evidence = ""
    try:
        predicate.holds(table)
        evidence = predicate.evidence(table)
        _check_values(table)
        condition = predicate.condition(table)
    except UndecidableClaim as reason:
        return ClaimAssessment("undecided", evidence, str(reason))
    redraws = condition.truth()[1:]
    share = float(redraws.mean()) if len(redraws) else None
    if condition.is_firm(True):
        return ClaimAssessment("holds", evidence, "", share)
    if condition.is_firm(False):
        return ClaimAssessment("does not hold", evidence, "", share)
    return ClaimAssessment("undecided", evidence, _tie_reason(condition), share)


def needed_data(predicate: Predicate, table: ValueTable) -> str:
    """How much more data would decide a tie if the values stayed as they are.

    With ``k`` times the seeds and test images, deviations of redraws shrink by the root of ``k``.
    """
    for factor in SAMPLE_FACTORS:
        redraws = {
            column: (values := table.values(column)[:, None])
            + (table.redraws[column] - values) / math.sqrt(factor)
            for column in table.redraws
        }
        condition = predicate.condition(replace(table, redraws=redraws, used=set()))
        if condition.is_firm(True) or condition.is_firm(False):
            return (
                f"about {factor} times as many seeds and test images would decide it "
                "if the values stay"
            )
    return "more seeds and test images alone would not decide it if the values stay"


def _check_values(table: ValueTable) -> None:
    """Raise if a value that the claim used cannot decide anything."""
    problems = [table.problems[key] for key in sorted(table.used) if key in table.problems]
    if problems:
        raise UndecidableClaim(_join_first(list(dict.fromkeys(problems)), "; "))
    for column in sorted({column for _, column in table.used} & table.accuracies):
        rows = [i for i, row in enumerate(table.rows) if (row, column) in table.used]
        values = table.values(column)[rows]
        for place, distance in (("floor", values.max()), ("ceiling", 1 - values.min())):
            if distance <= FLOOR:
                raise UndecidableClaim(
                    f"{column} is at the {place} in all {len(rows)} rows "
                    f"({table.format(column, float(values.mean()))} on average)"
                )


def _tie_reason(condition: Condition) -> str:
    ties = condition.open_comparisons()
    if not ties:
        return "no single comparison is clear enough among so many; more images or seeds are needed"
    return f"tied within their uncertainty: {_join_first(ties, '; ')}"


def _join_first(items: Sequence[object], separator: str = ", ") -> str:
    more = f" and {len(items) - MAX_LISTED} more" if len(items) > MAX_LISTED else ""
    return separator.join(map(str, items[:MAX_LISTED])) + more


def measured_draws(
    table: ValueTable, column: str, row_mask: np.ndarray | None = None
) -> np.ndarray:
    """(rows, 1 + redraws) values of some rows and their redraws; raise if a value is missing."""
    values = table.values(column)
    mask = np.ones(len(values), dtype=bool) if row_mask is None else row_mask
    if not mask.any():
        raise UndecidableClaim("no row matches the condition of the claim")
    indices = np.flatnonzero(mask)
    missing = [int(i) for i in indices if np.isnan(values[i])]
    if missing:
        reasons = {table.missing.get((table.rows[i], column), NOT_MEASURED) for i in missing}
        names = _join_first([table.row_name(i) for i in missing])
        raise UndecidableClaim(
            f"{column} is missing for {names}: {_join_first(sorted(reasons), '; ')}"
        )
    table.used.update((table.rows[i], column) for i in indices)
    return table.draws(column)[indices]


def measured_values(
    table: ValueTable, column: str, row_mask: np.ndarray | None = None
) -> np.ndarray:
    """(rows,) values of some rows; raise if one is missing."""
    return np.asarray(measured_draws(table, column, row_mask)[:, 0])


def mean_draws(table: ValueTable, column: str, where: Mapping[str, Any]) -> Draws:
    """(1 + redraws,) mean of the rows with these labels."""
    return np.asarray(measured_draws(table, column, table.mask(where)).mean(axis=0))


def split_rows(
    table: ValueTable, where: Mapping[str, Any], baseline: Mapping[str, Any] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the rows of a kind and of the baseline; without one, of all other rows."""
    group = table.mask(where)
    return group, ~group if baseline is None else table.mask(baseline)


def row_above(
    table: ValueTable, column: str, row: tuple[int, Draws], other: tuple[int, Draws]
) -> ValueComparison:
    """Whether one row is above another in a column; each is given by its index and its draws."""
    name = f"{column} of {table.row_name(row[0])} minus {table.row_name(other[0])}"
    return ValueComparison(row[1], other[1], name=name, unit=table.unit(column))
