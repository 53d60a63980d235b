"""Claims on rankings, ranges and order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from buttress.studies.claims.core import CLAIMS, measured_values
from buttress.studies.table import ValueTable


@CLAIMS.register("top")
@dataclass(frozen=True)
class TopRowsClaim:
    """The ``count`` highest rows of a column are all of a kind; or the rows of a kind are on top.

    With ``all_rows`` every row of the kind must be among the highest, with the default every one of
    the highest must be of the kind.
    """

    column: str
    where: dict[str, Any]
    count: int = 1
    all_rows: bool = False

    def columns(self) -> Sequence[str]:
        return (self.column,)

    def holds(self, view: ValueTable) -> bool:
        best = set(self._best(view))
        kind = set(np.flatnonzero(view.mask(self.where)).tolist())
        measured_values(view, self.column, view.mask(self.where))
        return kind <= best if self.all_rows else best <= kind

    def evidence(self, view: ValueTable) -> str:
        values = view.values(self.column)
        listed = ", ".join(f"{view.row_name(i)} {100 * values[i]:.1f}" for i in self._best(view))
        return f"highest in {self.column}: {listed}"

    def _best(self, view: ValueTable) -> list[int]:
        values = measured_values(view, self.column)
        return [int(i) for i in np.argsort(-values, kind="stable")[: self.count]]


@CLAIMS.register("different_best_rows")
@dataclass(frozen=True)
class DifferentBestRowsClaim:
    """Two columns have different best rows."""

    column: str
    other: str

    def columns(self) -> Sequence[str]:
        return (self.column, self.other)

    def holds(self, view: ValueTable) -> bool:
        return bool(
            np.argmax(measured_values(view, self.column))
            != np.argmax(measured_values(view, self.other))
        )

    def evidence(self, view: ValueTable) -> str:
        names = [view.row_name(int(np.argmax(measured_values(view, c)))) for c in self.columns()]
        return f"best in {self.column}: {names[0]}; best in {self.other}: {names[1]}"


@CLAIMS.register("best_within_margin")
@dataclass(frozen=True)
class BestWithinMarginClaim:
    """No other row is above the rows of a kind by more than ``margin``."""

    column: str
    where: dict[str, Any]
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return (self.column,)

    def holds(self, view: ValueTable) -> bool:
        group, others = self._split_rows(view)
        return bool(others.max() - group.max() <= self.margin)

    def evidence(self, view: ValueTable) -> str:
        group, others = self._split_rows(view)
        higher_count = int((others > group.max()).sum())
        best = f"{100 * group.max():.1f} against {100 * others.max():.1f} of the best other row"
        return f"{self.column}: {best}; {higher_count} of {len(others)} others are above"

    def _split_rows(self, view: ValueTable) -> tuple[np.ndarray, np.ndarray]:
        kind = view.mask(self.where)
        return measured_values(view, self.column, kind), measured_values(view, self.column, ~kind)


MAX_ROWS_SHOWN = 6  # rows that evidence lists


@CLAIMS.register("between")
@dataclass(frozen=True)
class BetweenClaim:
    """Every row of a kind has a number above ``low`` and below ``high``, where these are given."""

    column: str
    low: float = -math.inf
    high: float = math.inf
    where: dict[str, Any] = field(default_factory=dict)

    def columns(self) -> Sequence[str]:
        return (self.column,)

    def holds(self, view: ValueTable) -> bool:
        values = measured_values(view, self.column, view.mask(self.where))
        return bool(((values > self.low) & (values < self.high)).all())

    def evidence(self, view: ValueTable) -> str:
        row_mask = view.mask(self.where)
        values = measured_values(view, self.column, row_mask)
        names = [view.row_name(i) for i, is_chosen in enumerate(row_mask) if is_chosen]
        pairs = [f"{n} {v:.3g}" for n, v in zip(names, values, strict=True)]
        return f"{self.column}: {', '.join(pairs[:MAX_ROWS_SHOWN])}" + (
            " ..." if len(pairs) > MAX_ROWS_SHOWN else ""
        )


@CLAIMS.register("column_order")
@dataclass(frozen=True)
class ColumnOrderClaim:
    """In every row of a kind the columns named are in falling order."""

    order: list[str]
    where: dict[str, Any] = field(default_factory=dict)
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return self.order

    def holds(self, view: ValueTable) -> bool:
        row_mask = view.mask(self.where)
        values = [measured_values(view, column, row_mask) for column in self.order]
        return all(bool((a - b > self.margin).all()) for a, b in pairwise(values))

    def evidence(self, view: ValueTable) -> str:
        row_mask = view.mask(self.where)
        means = {column: measured_values(view, column, row_mask).mean() for column in self.order}
        return ", ".join(f"{column} {100 * mean:.1f}" for column, mean in means.items())


@CLAIMS.register("not")
@dataclass(frozen=True)
class NegatedClaim:
    """Another claim is false."""

    claim: dict[str, Any]  # its name and args

    def predicate(self) -> Any:
        return CLAIMS.create(self.claim["name"], self.claim.get("args", {}))

    def columns(self) -> Sequence[str]:
        columns: Sequence[str] = self.predicate().columns()
        return columns

    def holds(self, view: ValueTable) -> bool:
        return not self.predicate().holds(view)

    def evidence(self, view: ValueTable) -> str:
        return str(self.predicate().evidence(view))
