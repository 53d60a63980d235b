"""Claims that compare groups of rows or columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from buttress.statistics import auc
from buttress.studies.claims.core import CLAIMS, UndecidableClaim, measured_values
from buttress.studies.table import ValueTable


@CLAIMS.register("higher")
@dataclass(frozen=True)
class HigherClaim:
    """The mean of some rows is above that of others, in every column named.

    ``margin`` is how much above it must be. With ``majority_of_pairs`` a random pair must also be
    ordered so more often than not, with ``all_pairs`` each pair. Without ``baseline`` it is all
    other rows.
    """

    column: str | list[str]
    where: dict[str, Any]
    baseline: dict[str, Any] | None = None
    margin: float = 0.0
    majority_of_pairs: bool = False
    all_pairs: bool = False

    def columns(self) -> Sequence[str]:
        return [self.column] if isinstance(self.column, str) else self.column

    def holds(self, view: ValueTable) -> bool:
        return all(
            self._mean_difference(view, column) > self.margin and self._pairs_hold(view, column)
            for column in self.columns()
        )

    def evidence(self, view: ValueTable) -> str:
        parts = []
        for column in self.columns():
            group, baseline = self._split_rows(view, column)
            text = f"{column}: {100 * group.mean():.1f} against {100 * baseline.mean():.1f}"
            parts.append(
                text
                + (
                    f", ordered pairs {auc(group, baseline).value:.2f}"
                    if self.majority_of_pairs
                    else ""
                )
            )
        return "; ".join(parts)

    def _mean_difference(self, view: ValueTable, column: str) -> float:
        group, baseline = self._split_rows(view, column)
        return float(group.mean() - baseline.mean())

    def _pairs_hold(self, view: ValueTable, column: str) -> bool:
        ordered_pairs = auc(*self._split_rows(view, column)).value
        return (ordered_pairs > 0.5 or not self.majority_of_pairs) and (
            ordered_pairs == 1 or not self.all_pairs
        )

    def _split_rows(self, view: ValueTable, column: str) -> tuple[np.ndarray, np.ndarray]:
        group = view.mask(self.where)
        baseline = ~group if self.baseline is None else view.mask(self.baseline)
        return measured_values(view, column, group), measured_values(view, column, baseline)


@CLAIMS.register("paired_higher")
@dataclass(frozen=True)
class PairedHigherClaim:
    """One label of an axis is above another in every pair of rows that is else alike.

    ``min_share`` is the share of pairs, ``margin`` how much above.
    """

    column: str | list[str]
    axis: str
    label: str
    baseline: str
    margin: float = 0.0
    min_share: float = 1.0

    def columns(self) -> Sequence[str]:
        return [self.column] if isinstance(self.column, str) else self.column

    def holds(self, view: ValueTable) -> bool:
        gaps = self._differences(view)
        return float(np.mean([gap > self.margin for _, gap in gaps])) >= self.min_share

    def evidence(self, view: ValueTable) -> str:
        gaps = self._differences(view)
        listed = ", ".join(f"{name} {100 * gap:+.1f}" for name, gap in gaps[:8])
        return f"{self.label} minus {self.baseline}: {listed}" + (" ..." if len(gaps) > 8 else "")

    def _differences(self, view: ValueTable) -> list[tuple[str, float]]:
        axis_index = view.axes.index(self.axis)
        rows = {row: i for i, row in enumerate(view.rows)}
        differences = []
        for row, index in rows.items():
            baseline_index = rows.get((*row[:axis_index], self.baseline, *row[axis_index + 1 :]))
            if row[axis_index] != self.label or baseline_index is None:
                continue
            for column in self.columns():
                pair_mask = np.zeros(len(view.rows), dtype=bool)
                pair_mask[[index, baseline_index]] = True
                measured_values(view, column, pair_mask)
                values = view.values(column)
                other_labels = " / ".join((*row[:axis_index], *row[axis_index + 1 :]))
                differences.append(
                    (
                        f"{other_labels} {column}".strip(),
                        float(values[index] - values[baseline_index]),
                    )
                )
        if not differences:
            measured_values(view, self.columns()[0], np.zeros(len(view.rows), dtype=bool))
        return differences


@CLAIMS.register("column_higher")
@dataclass(frozen=True)
class ColumnHigherClaim:
    """One column is above another in every row, or in those of a kind."""

    column: str
    baseline: str
    where: dict[str, Any] = field(default_factory=dict)
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return (self.column, self.baseline)

    def holds(self, view: ValueTable) -> bool:
        return bool((self._differences(view) > self.margin).all())

    def evidence(self, view: ValueTable) -> str:
        gaps = self._differences(view)
        range_text = f"{100 * gaps.min():+.1f} to {100 * gaps.max():+.1f}"
        return f"{self.column} minus {self.baseline}: {range_text} points over {len(gaps)} rows"

    def _differences(self, view: ValueTable) -> np.ndarray:
        row_mask = view.mask(self.where)
        return measured_values(view, self.column, row_mask) - measured_values(
            view, self.baseline, row_mask
        )


@CLAIMS.register("smaller_column_drop")
@dataclass(frozen=True)
class SmallerColumnDropClaim:
    """From one column to another, some rows fall by less than others do, on average."""

    column: str
    to_column: str
    where: dict[str, Any]
    baseline: dict[str, Any] | None = None
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return (self.column, self.to_column)

    def holds(self, view: ValueTable) -> bool:
        group_drop, baseline_drop = self._mean_drops(view)
        return baseline_drop - group_drop > self.margin

    def evidence(self, view: ValueTable) -> str:
        group_drop, baseline_drop = self._mean_drops(view)
        step = f"from {self.column} to {self.to_column}"
        return f"{step}: {100 * group_drop:.1f} points against {100 * baseline_drop:.1f}"

    def _mean_drops(self, view: ValueTable) -> tuple[float, float]:
        group = view.mask(self.where)
        baseline = ~group if self.baseline is None else view.mask(self.baseline)
        first, second = (
            float(
                (
                    measured_values(view, self.column, side)
                    - measured_values(view, self.to_column, side)
                ).mean()
            )
            for side in (group, baseline)
        )
        return first, second


@CLAIMS.register("gain")
@dataclass(frozen=True)
class GainClaim:
    """Rows of one kind are above those of another that they share some labels with.

    ``match_on`` is what a pair shares, ``min_share`` the share of cells (pair and column) that must
    gain more than ``margin``. Cells of ``exceptions`` do not count: each is a kind of rows, with
    the columns it is about.
    """

    column: list[str]
    where: dict[str, Any]
    baseline: dict[str, Any]
    match_on: list[str]
    margin: float = 0.0
    min_share: float = 1.0
    exceptions: list[dict[str, Any]] = field(default_factory=list)

    def columns(self) -> Sequence[str]:
        return self.column

    def holds(self, view: ValueTable) -> bool:
        gains = np.array([gain for _, gain in self._gains(view)])
        return bool(np.mean(gains > self.margin) >= self.min_share)

    def evidence(self, view: ValueTable) -> str:
        gains = self._gains(view)
        values = 100 * np.array([gain for _, gain in gains])
        text = (
            f"{values.mean():+.2f} points in the mean, {values.min():+.2f} to {values.max():+.2f}"
        )
        failing = [f"{name} {100 * gain:+.2f}" for name, gain in gains if gain <= self.margin]
        text += f", a gain in {len(gains) - len(failing)} of {len(gains)} cells"
        return text + (f"; not in {', '.join(failing[:6])}" if failing else "")

    def _gains(self, view: ValueTable) -> list[tuple[str, float]]:
        """What each cell gained, with its name."""
        gains = []
        for row, base in self._pairs(view):
            for column in self.column:
                if self._is_exception(view, row, column):
                    continue
                pair_mask = np.zeros(len(view.rows), dtype=bool)
                pair_mask[[row, base]] = True
                measured_values(view, column, pair_mask)
                values = view.values(column)
                gains.append((f"{view.row_name(row)} {column}", float(values[row] - values[base])))
        if not gains:
            raise UndecidableClaim("no row has a matching baseline row")
        return gains

    def _pairs(self, view: ValueTable) -> list[tuple[int, int]]:
        bases = {
            self._match_key(view, i): i for i in np.flatnonzero(view.mask(self.baseline)).tolist()
        }
        group_rows = np.flatnonzero(view.mask(self.where)).tolist()
        return [(i, bases[key]) for i in group_rows if (key := self._match_key(view, i)) in bases]

    def _match_key(self, view: ValueTable, index: int) -> tuple[str, ...]:
        about = view.row_attributes(index)
        return tuple(str(about.get(key)) for key in self.match_on)

    def _is_exception(self, view: ValueTable, index: int, column: str) -> bool:
        for case in self.exceptions:
            kind = {key: value for key, value in case.items() if key != "column"}
            if column in case.get("column", [column]) and view.mask(kind)[index]:
                return True
        return False


@CLAIMS.register("smaller_row_drop")
@dataclass(frozen=True)
class SmallerRowDropClaim:
    """From one row to another a column falls by less than between two others, in every column."""

    column: str | list[str]
    from_to: list[dict[str, Any]]
    baseline_from_to: list[dict[str, Any]]

    def columns(self) -> Sequence[str]:
        return [self.column] if isinstance(self.column, str) else self.column

    def holds(self, view: ValueTable) -> bool:
        return all(
            drop < baseline_drop
            for drop, baseline_drop in map(lambda c: self._drops(view, c), self.columns())
        )

    def evidence(self, view: ValueTable) -> str:
        parts = []
        for column in self.columns():
            drop, baseline_drop = self._drops(view, column)
            parts.append(f"{column} falls by {100 * drop:.1f} against {100 * baseline_drop:.1f}")
        return "; ".join(parts)

    def _drops(self, view: ValueTable, column: str) -> tuple[float, float]:
        return _row_drop(view, column, self.from_to), _row_drop(view, column, self.baseline_from_to)


def _row_drop(view: ValueTable, column: str, ends: Sequence[dict[str, Any]]) -> float:
    before, after = (
        float(measured_values(view, column, view.mask(where)).mean()) for where in ends
    )
    return before - after
