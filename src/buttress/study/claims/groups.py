"""One kind of rows against another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from buttress.statistics import auc
from buttress.study.claims.core import CLAIMS, known
from buttress.study.table import View


@CLAIMS.register("higher")
@dataclass(frozen=True)
class Higher:
    """The mean of some rows is above that of others, in every column named.

    ``margin`` is how much above it must be. With ``pairs`` a random pair must also be ordered so
    more often than not, with ``every`` each pair. Without ``than`` it is all other rows.
    """

    column: str | list[str]
    where: dict[str, Any]
    than: dict[str, Any] | None = None
    margin: float = 0.0
    pairs: bool = False
    every: bool = False

    def columns(self) -> Sequence[str]:
        return [self.column] if isinstance(self.column, str) else self.column

    def holds(self, view: View) -> bool:
        return all(
            self._gap(view, column) > self.margin and self._ordered(view, column)
            for column in self.columns()
        )

    def evidence(self, view: View) -> str:
        parts = []
        for column in self.columns():
            mine, theirs = self._sides(view, column)
            text = f"{column}: {100 * mine.mean():.1f} against {100 * theirs.mean():.1f}"
            parts.append(
                text + (f", ordered pairs {auc(mine, theirs).value:.2f}" if self.pairs else "")
            )
        return "; ".join(parts)

    def _gap(self, view: View, column: str) -> float:
        mine, theirs = self._sides(view, column)
        return float(mine.mean() - theirs.mean())

    def _ordered(self, view: View, column: str) -> bool:
        share = auc(*self._sides(view, column)).value
        return (share > 0.5 or not self.pairs) and (share == 1 or not self.every)

    def _sides(self, view: View, column: str) -> tuple[np.ndarray, np.ndarray]:
        mine = view.mask(self.where)
        theirs = ~mine if self.than is None else view.mask(self.than)
        return known(view, column, mine), known(view, column, theirs)


@CLAIMS.register("matched_higher")
@dataclass(frozen=True)
class MatchedHigher:
    """One label of an axis is above another in every pair of rows that is else alike.

    ``at_least`` is the share of pairs, ``margin`` how much above.
    """

    column: str | list[str]
    axis: str
    label: str
    than: str
    margin: float = 0.0
    at_least: float = 1.0

    def columns(self) -> Sequence[str]:
        return [self.column] if isinstance(self.column, str) else self.column

    def holds(self, view: View) -> bool:
        gaps = self._gaps(view)
        return float(np.mean([gap > self.margin for _, gap in gaps])) >= self.at_least

    def evidence(self, view: View) -> str:
        gaps = self._gaps(view)
        listed = ", ".join(f"{name} {100 * gap:+.1f}" for name, gap in gaps[:8])
        return f"{self.label} minus {self.than}: {listed}" + (" ..." if len(gaps) > 8 else "")

    def _gaps(self, view: View) -> list[tuple[str, float]]:
        place = view.axes.index(self.axis)
        rows = {row: i for i, row in enumerate(view.rows)}
        found = []
        for row, index in rows.items():
            other = rows.get((*row[:place], self.than, *row[place + 1 :]))
            if row[place] != self.label or other is None:
                continue
            for column in self.columns():
                both = np.zeros(len(view.rows), dtype=bool)
                both[[index, other]] = True
                known(view, column, both)
                values = view.values(column)
                rest = " / ".join((*row[:place], *row[place + 1 :]))
                found.append((f"{rest} {column}".strip(), float(values[index] - values[other])))
        if not found:
            known(view, self.columns()[0], np.zeros(len(view.rows), dtype=bool))
        return found


@CLAIMS.register("rows_higher")
@dataclass(frozen=True)
class RowsHigher:
    """One column is above another in every row, or in those of a kind."""

    column: str
    than: str
    where: dict[str, Any] = field(default_factory=dict)
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return (self.column, self.than)

    def holds(self, view: View) -> bool:
        return bool((self._gaps(view) > self.margin).all())

    def evidence(self, view: View) -> str:
        gaps = self._gaps(view)
        span = f"{100 * gaps.min():+.1f} to {100 * gaps.max():+.1f}"
        return f"{self.column} minus {self.than}: {span} points over {len(gaps)} rows"

    def _gaps(self, view: View) -> np.ndarray:
        chosen = view.mask(self.where)
        return known(view, self.column, chosen) - known(view, self.than, chosen)


@CLAIMS.register("falls_less")
@dataclass(frozen=True)
class FallsLess:
    """From one column to another, some rows fall by less than others do, on average."""

    column: str
    to: str
    where: dict[str, Any]
    than: dict[str, Any] | None = None
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return (self.column, self.to)

    def holds(self, view: View) -> bool:
        mine, theirs = self._falls(view)
        return theirs - mine > self.margin

    def evidence(self, view: View) -> str:
        mine, theirs = self._falls(view)
        step = f"from {self.column} to {self.to}"
        return f"{step}: {100 * mine:.1f} points against {100 * theirs:.1f}"

    def _falls(self, view: View) -> tuple[float, float]:
        mine = view.mask(self.where)
        theirs = ~mine if self.than is None else view.mask(self.than)
        first, second = (
            float((known(view, self.column, side) - known(view, self.to, side)).mean())
            for side in (mine, theirs)
        )
        return first, second
