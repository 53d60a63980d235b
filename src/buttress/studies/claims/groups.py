"""Claims that compare groups of rows or columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from buttress.statistics import auc
from buttress.studies.claims.conditions import (
    Condition,
    Draws,
    ValueComparison,
    all_of,
    share_of,
)
from buttress.studies.claims.core import (
    CLAIMS,
    Predicate,
    UndecidableClaim,
    mean_draws,
    measured_draws,
    row_above,
    split_rows,
)
from buttress.studies.table import ValueTable


@CLAIMS.register("higher")
@dataclass(frozen=True)
class HigherClaim(Predicate):
    """The mean of some rows is above that of others, in every column named.

    ``margin`` is how much above it must be. With ``majority_of_pairs`` a random pair must also be
    ordered so more often than not, with ``all_pairs`` each pair. Without ``baseline`` it is all
    other rows. ``redraw_rows`` says that the rows are a sample of their kinds, so that another
    sample could give another mean.
    """

    column: str | list[str]
    where: dict[str, Any]
    baseline: dict[str, Any] | None = None
    margin: float = 0.0
    majority_of_pairs: bool = False
    all_pairs: bool = False
    redraw_rows: bool = False

    def condition(self, table: ValueTable) -> Condition:
        return all_of([part for column in self.columns() for part in self._parts(table, column)])

    def _parts(self, table: ValueTable, column: str) -> list[Condition]:
        masks = split_rows(table, self.where, self.baseline)
        group, baseline = (measured_draws(table, column, mask) for mask in masks)
        name, unit = (
            f"mean {column} of the rows claimed higher minus the others",
            table.unit(column),
        )
        means = _group_means([group, baseline], self.redraw_rows)
        parts: list[Condition] = [ValueComparison(means[0], means[1], self.margin, name, unit)]
        if self.majority_of_pairs:
            parts.append(self._majority(group, baseline, column))
        if self.all_pairs:
            indices = [np.flatnonzero(mask).tolist() for mask in masks]
            parts += [
                row_above(table, column, row, other)
                for row in zip(indices[0], group, strict=True)
                for other in zip(indices[1], baseline, strict=True)
            ]
        return parts

    def _majority(self, group: np.ndarray, baseline: np.ndarray, column: str) -> ValueComparison:
        pairs = group[:, None, :] - baseline[None, :, :]
        ordered = np.asarray(((pairs > 0) + 0.5 * (pairs == 0)).mean(axis=(0, 1)))
        if self.redraw_rows:
            interval = auc(group[:, 0], baseline[:, 0]).interval
            ordered = ordered + _normal_noise(ordered, (interval.high - interval.low) / 3.92)
        return ValueComparison(
            ordered, 0.5, 0.0, f"share of pairs ordered so in {column} minus half"
        )

    def evidence(self, table: ValueTable) -> str:
        parts = []
        for column in self.columns():
            masks = split_rows(table, self.where, self.baseline)
            group, baseline = (measured_draws(table, column, mask)[:, 0] for mask in masks)
            means = [table.format(column, float(side.mean())) for side in (group, baseline)]
            pairs = f", ordered pairs {auc(group, baseline).value:.2f}"
            text = f"{column}: {means[0]} against {means[1]}"
            parts.append(text + (pairs if self.majority_of_pairs else ""))
        return "; ".join(parts)


def _group_means(groups: Sequence[np.ndarray], redraw_rows: bool) -> list[Draws]:
    """(1 + redraws,) mean of each group of rows, as another sample of rows may have it."""
    generator = np.random.default_rng(len(groups))  # one for all: groups vary independently
    return [
        rows.mean(axis=0) + (_row_noise(rows, generator) if redraw_rows else 0.0) for rows in groups
    ]


def _row_noise(rows: np.ndarray, generator: np.random.Generator) -> Draws:
    """What another sample of rows may change in their mean; none in the estimate itself."""
    count, redraws = len(rows), rows.shape[1] - 1
    if not redraws:
        return np.zeros(1)
    if count < 2:
        raise UndecidableClaim("too few rows: a kind needs at least two rows")
    error = float(rows[:, 0].std(ddof=1)) / math.sqrt(count)
    return np.append(0.0, error * generator.standard_t(count - 1, redraws))


def _normal_noise(draws: Draws, deviation: float) -> Draws:
    generator = np.random.default_rng(len(draws))
    return np.append(0.0, deviation * generator.standard_normal(len(draws) - 1))


@CLAIMS.register("column_higher")
@dataclass(frozen=True)
class ColumnHigherClaim(Predicate):
    """One column is above another in every row, or in those of a kind."""

    column: str
    baseline: str
    where: dict[str, Any] = field(default_factory=dict)
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return (self.column, self.baseline)

    def condition(self, table: ValueTable) -> Condition:
        mask, unit = table.mask(self.where), table.unit(self.column)
        sides = [measured_draws(table, column, mask) for column in self.columns()]
        names = [table.row_name(int(i)) for i in np.flatnonzero(mask)]
        return all_of(
            [
                ValueComparison(
                    a, b, self.margin, f"{self.column} minus {self.baseline} of {name}", unit
                )
                for name, a, b in zip(names, *sides, strict=True)
            ]
        )

    def evidence(self, table: ValueTable) -> str:
        mask = table.mask(self.where)
        first, second = (measured_draws(table, column, mask)[:, 0] for column in self.columns())
        ends = [
            table.format_difference(self.column, float(end))
            for end in ((first - second).min(), (first - second).max())
        ]
        text = ends[0] if len(first) == 1 else f"{ends[0]} to {ends[1]} over {len(first)} rows"
        return f"{self.column} minus {self.baseline}: {text}"


@CLAIMS.register("smaller_column_drop")
@dataclass(frozen=True)
class SmallerColumnDropClaim(Predicate):
    """From one column to another, some rows fall by less than others do, on average.

    ``redraw_rows`` says that the rows are a sample of their kinds.
    """

    column: str
    to_column: str
    where: dict[str, Any]
    baseline: dict[str, Any] | None = None
    margin: float = 0.0
    redraw_rows: bool = False

    def columns(self) -> Sequence[str]:
        return (self.column, self.to_column)

    def condition(self, table: ValueTable) -> Condition:
        means = _group_means(self._drops(table), self.redraw_rows)
        name = (
            f"drop from {self.column} to {self.to_column} of the others minus that claimed smaller"
        )
        return ValueComparison(means[1], means[0], self.margin, name, table.unit(self.column))

    def evidence(self, table: ValueTable) -> str:
        drops = [float(drop[:, 0].mean()) for drop in self._drops(table)]
        texts = [table.format(self.column, drop) for drop in drops]
        return f"from {self.column} to {self.to_column}: {texts[0]} lost against {texts[1]}"

    def _drops(self, table: ValueTable) -> list[np.ndarray]:
        return [
            measured_draws(table, self.column, mask) - measured_draws(table, self.to_column, mask)
            for mask in split_rows(table, self.where, self.baseline)
        ]


@CLAIMS.register("gain")
@dataclass(frozen=True)
class GainClaim(Predicate):
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

    def condition(self, table: ValueTable) -> Condition:
        return share_of(self.min_share, self._gains(table))

    def evidence(self, table: ValueTable) -> str:
        gains, column = self._gains(table), self.column[0]
        values = np.array([float(gain.difference[0]) for gain in gains])
        mean, least, most = (
            table.format_difference(column, float(v))
            for v in (values.mean(), values.min(), values.max())
        )
        without = [str(gain.name) for gain in gains if not gain.truth()[0]]
        text = f"{mean} in the mean, {least} to {most}, a gain in {len(gains) - len(without)} "
        text += f"of {len(gains)} cells"
        return text + (f"; not in {', '.join(without[:6])}" if without else "")

    def _gains(self, table: ValueTable) -> list[ValueComparison]:
        """The gain of each row over its baseline row, in each column."""
        gains = []
        for row, base in self._pairs(table):
            for column in self.column:
                if self._is_exception(table, row, column):
                    continue
                pair = np.isin(np.arange(len(table.rows)), [row, base])
                draws = dict(
                    zip(sorted([row, base]), measured_draws(table, column, pair), strict=True)
                )
                name = f"gain of {table.row_name(row)} in {column}"
                unit = table.unit(column)
                gains.append(ValueComparison(draws[row], draws[base], self.margin, name, unit))
        if not gains:
            raise UndecidableClaim("no row has a matching baseline row")
        return gains

    def _pairs(self, table: ValueTable) -> list[tuple[int, int]]:
        group, baseline = (
            np.flatnonzero(mask).tolist() for mask in split_rows(table, self.where, self.baseline)
        )
        bases = {self._match_key(table, i): i for i in baseline}
        return [(i, bases[key]) for i in group if (key := self._match_key(table, i)) in bases]

    def _match_key(self, table: ValueTable, index: int) -> tuple[str, ...]:
        attributes = table.row_attributes(index)
        return tuple(str(attributes.get(key)) for key in self.match_on)

    def _is_exception(self, table: ValueTable, index: int, column: str) -> bool:
        for case in self.exceptions:
            kind = {key: value for key, value in case.items() if key != "column"}
            if column in case.get("column", [column]) and table.mask(kind)[index]:
                return True
        return False


@CLAIMS.register("smaller_row_drop")
@dataclass(frozen=True)
class SmallerRowDropClaim(Predicate):
    """From one row to another a column falls by less than between two others, in every column."""

    column: str | list[str]
    from_to: list[dict[str, Any]]
    baseline_from_to: list[dict[str, Any]]

    def condition(self, table: ValueTable) -> Condition:
        return all_of([self._comparison(table, column) for column in self.columns()])

    def _comparison(self, table: ValueTable, column: str) -> ValueComparison:
        drop, baseline = self._drops(table, column)
        name = f"drop in {column} of the baseline minus that claimed smaller"
        return ValueComparison(baseline, drop, 0.0, name, table.unit(column))

    def evidence(self, table: ValueTable) -> str:
        parts = []
        for column in self.columns():
            drops = [float(drop[0]) for drop in self._drops(table, column)]
            texts = [table.format(column, drop) for drop in drops]
            parts.append(f"{column} falls by {texts[0]} against {texts[1]}")
        return "; ".join(parts)

    def _drops(self, table: ValueTable, column: str) -> list[Draws]:
        drops = []
        for ends in (self.from_to, self.baseline_from_to):
            before, after = (mean_draws(table, column, where) for where in ends)
            drops.append(before - after)
        return drops
