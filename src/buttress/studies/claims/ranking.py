"""Claims on the best rows, on ranges and on the order of columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from buttress.studies.claims.conditions import (
    AtLeast,
    Condition,
    Draws,
    Negation,
    ValueComparison,
    all_of,
    any_of,
)
from buttress.studies.claims.core import (
    CLAIMS,
    Predicate,
    UndecidableClaim,
    measured_draws,
    measured_values,
    row_above,
)
from buttress.studies.table import ValueTable

MAX_ROWS_SHOWN = 6  # rows that evidence lists


@CLAIMS.register("top")
@dataclass(frozen=True)
class TopRowsClaim(Predicate):
    """The ``count`` highest rows of a column are all of a kind.

    With ``all_rows`` it is the other way round: every row of the kind is among the highest.
    """

    column: str
    where: dict[str, Any]
    count: int = 1
    all_rows: bool = False

    def condition(self, table: ValueTable) -> Condition:
        draws = measured_draws(table, self.column)
        kind = set(np.flatnonzero(table.mask(self.where)).tolist())
        if len(kind) < (1 if self.all_rows else self.count) or len(draws) <= self.count:
            raise UndecidableClaim(
                f"too few rows: {len(kind)} of {len(draws)} are of the kind that is claimed to be "
                f"among the {self.count} highest"
            )
        if self.all_rows:
            beaten = len(draws) - self.count
            return all_of(
                [AtLeast(beaten, self._lead(table, draws, i, range(len(draws)))) for i in kind]
            )
        others = [i for i in range(len(draws)) if i not in kind]
        return AtLeast(self.count, [all_of(self._lead(table, draws, i, others)) for i in kind])

    def _lead(
        self, table: ValueTable, draws: np.ndarray, row: int, others: Sequence[int]
    ) -> list[Condition]:
        return [
            row_above(table, self.column, (row, draws[row]), (i, draws[i]))
            for i in others
            if i != row
        ]

    def evidence(self, table: ValueTable) -> str:
        values = measured_values(table, self.column)
        best = np.argsort(-values, kind="stable")
        cut = values[best[min(self.count, len(best)) - 1]]
        top_rows = [int(i) for i in best if values[i] >= cut]  # also those that tie with the last
        row_labels = [
            f"{table.row_name(i)} {table.format(self.column, float(values[i]))}"
            for i in top_rows[: max(self.count, MAX_ROWS_SHOWN)]
        ]
        more = " ..." if len(top_rows) > len(row_labels) else ""
        return f"highest in {self.column}: {', '.join(row_labels)}{more}"


@CLAIMS.register("different_best_rows")
@dataclass(frozen=True)
class DifferentBestRowsClaim(Predicate):
    """Two columns have different best rows."""

    column: str
    other: str

    def columns(self) -> Sequence[str]:
        return (self.column, self.other)

    def condition(self, table: ValueTable) -> Condition:
        """No row is unbeaten in both columns."""
        both = [(column, measured_draws(table, column)) for column in self.columns()]
        count = len(table.rows)
        if count < 2:
            raise UndecidableClaim("too few rows: the best of one row is always the same")
        return all_of(
            [
                any_of(
                    [
                        row_above(table, column, (j, draws[j]), (i, draws[i]))
                        for column, draws in both
                        for j in range(count)
                        if j != i
                    ]
                )
                for i in range(count)
            ]
        )

    def evidence(self, table: ValueTable) -> str:
        names = []
        for column in self.columns():
            values = measured_values(table, column)
            best = np.flatnonzero(values == values.max())
            names.append(" and ".join(table.row_name(int(i)) for i in best[:MAX_ROWS_SHOWN]))
        return f"best in {self.column}: {names[0]}; best in {self.other}: {names[1]}"


@CLAIMS.register("best_within_margin")
@dataclass(frozen=True)
class BestWithinMarginClaim(Predicate):
    """No other row is above the best row of a kind by more than ``margin``."""

    column: str
    where: dict[str, Any]
    margin: float = 0.0

    def condition(self, table: ValueTable) -> Condition:
        mask = table.mask(self.where)
        group = measured_draws(table, self.column, mask)
        others = measured_draws(table, self.column, ~mask)
        names = [table.row_name(int(i)) for i in np.flatnonzero(~mask)]
        return all_of(
            [
                any_of([Negation(self._lead(table, name, other, row)) for row in group])
                for name, other in zip(names, others, strict=True)
            ]
        )

    def _lead(self, table: ValueTable, name: str, other: Draws, row: Draws) -> ValueComparison:
        text = f"{self.column} of {name} minus the row claimed best"
        return ValueComparison(other, row, self.margin, text, table.unit(self.column))

    def evidence(self, table: ValueTable) -> str:
        mask = table.mask(self.where)
        best = measured_values(table, self.column, mask).max()
        others = measured_values(table, self.column, ~mask)
        texts = [table.format(self.column, float(v)) for v in (best, others.max())]
        count = f"{int((others > best).sum())} of {len(others)} others are above"
        return f"{self.column}: {texts[0]} against {texts[1]} of the best other row; {count}"


@CLAIMS.register("between")
@dataclass(frozen=True)
class BetweenClaim(Predicate):
    """Every row of a kind has a number above ``low`` and below ``high``, where these are given."""

    column: str
    low: float = -math.inf
    high: float = math.inf
    where: dict[str, Any] = field(default_factory=dict)

    def condition(self, table: ValueTable) -> Condition:
        mask, unit, parts = table.mask(self.where), table.unit(self.column), []
        rows = measured_draws(table, self.column, mask)
        for index, row in zip(np.flatnonzero(mask).tolist(), rows, strict=True):
            name = f"{self.column} of {table.row_name(index)}"
            if self.low > -math.inf:
                parts.append(
                    ValueComparison(row, self.low, 0.0, f"{name} minus the lower limit", unit)
                )
            if self.high < math.inf:
                name = f"the upper limit minus {name}"
                parts.append(ValueComparison(np.full_like(row, self.high), row, 0.0, name, unit))
        return all_of(parts)

    def evidence(self, table: ValueTable) -> str:
        mask = table.mask(self.where)
        values = measured_values(table, self.column, mask)
        pairs = [
            f"{table.row_name(int(i))} {table.format(self.column, float(value))}"
            for i, value in zip(np.flatnonzero(mask), values, strict=True)
        ]
        more = " ..." if len(pairs) > MAX_ROWS_SHOWN else ""
        return f"{self.column}: {', '.join(pairs[:MAX_ROWS_SHOWN])}{more}"


@CLAIMS.register("column_order")
@dataclass(frozen=True)
class ColumnOrderClaim(Predicate):
    """In every row of a kind the columns named are in falling order."""

    order: list[str]
    where: dict[str, Any] = field(default_factory=dict)
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return self.order

    def condition(self, table: ValueTable) -> Condition:
        mask, parts = table.mask(self.where), []
        names = [table.row_name(int(i)) for i in np.flatnonzero(mask)]
        for high, low in pairwise(self.order):
            sides = [measured_draws(table, column, mask) for column in (high, low)]
            parts += [
                ValueComparison(
                    a, b, self.margin, f"{high} minus {low} of {name}", table.unit(high)
                )
                for name, a, b in zip(names, *sides, strict=True)
            ]
        return all_of(parts)

    def evidence(self, table: ValueTable) -> str:
        mask = table.mask(self.where)
        return ", ".join(
            f"{column} {table.format(column, float(measured_values(table, column, mask).mean()))}"
            for column in self.order
        )
