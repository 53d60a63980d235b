"""Claims on orders, trends, effects, correlations, peaks and ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from buttress.statistics import spearman
from buttress.studies.claims.conditions import (
    Condition,
    Draws,
    Negation,
    ValueComparison,
    all_of,
    any_of,
    share_of,
)
from buttress.studies.claims.core import (
    CLAIMS,
    Predicate,
    UndecidableClaim,
    mean_draws,
    measured_draws,
    measured_values,
    row_above,
)
from buttress.studies.table import ValueTable

MIN_CORRELATION_ROWS = 4  # with fewer every order is likely by chance
MIN_RELIABILITY = 0.5  # share of the variance between rows that is not noise


@CLAIMS.register("row_order")
@dataclass(frozen=True)
class RowOrderClaim(Predicate):
    """Rows picked one by one are in falling order in every column; ``margin`` allows near ties.

    A step is ``a > b`` if ``a - b > margin``; a negative margin lets a step fail by that much.
    """

    column: str | list[str]
    rows: list[dict[str, Any]]
    margin: float = 0.0

    def condition(self, table: ValueTable) -> Condition:
        names = [" / ".join(str(label) for label in where.values()) for where in self.rows]
        return all_of(
            [
                ValueComparison(
                    mean_draws(table, column, self.rows[i]),
                    mean_draws(table, column, self.rows[i + 1]),
                    self.margin,
                    f"{column} of {names[i]} minus {names[i + 1]}",
                    table.unit(column),
                )
                for column in self.columns()
                for i in range(len(self.rows) - 1)
            ]
        )

    def evidence(self, table: ValueTable) -> str:
        parts = []
        for column in self.columns():
            values = [float(mean_draws(table, column, where)[0]) for where in self.rows]
            text = table.format(column, values[0])
            for high, low in pairwise(values):
                sign = ">" if high > low else "=" if high == low else "<"
                text += f" {sign} {table.format(column, low)}"
            parts.append(f"{column}: {text}")
        return "; ".join(parts)


@CLAIMS.register("monotone")
@dataclass(frozen=True)
class MonotoneClaim(Predicate):
    """A column rises or falls with a number of the rows, in each group that is else alike.

    ``diminishing`` requires that the steps get smaller too, from ``diminishing_from`` on.
    """

    column: str | list[str]
    along: str
    direction: Literal["rising", "falling"] = "rising"
    where: dict[str, Any] = field(default_factory=dict)
    group_by: list[str] | None = None  # labels or attributes that tell groups apart
    diminishing: bool = False
    diminishing_from: float = float("-inf")
    margin: float = 0.0

    def condition(self, table: ValueTable) -> Condition:
        return all_of(
            [
                part
                for column in self.columns()
                for group in self._groups(table, column).items()
                for part in self._steps(table, column, group)
            ]
        )

    def _steps(
        self, table: ValueTable, column: str, group: tuple[str, tuple[np.ndarray, np.ndarray]]
    ) -> list[Condition]:
        name, (positions, draws) = group
        sign, unit = 1.0 if self.direction == "rising" else -1.0, table.unit(column)
        steps = sign * np.diff(draws, axis=0)
        texts = [f"{a:g} to {b:g}" for a, b in pairwise(positions)]
        parts: list[Condition] = [
            ValueComparison(
                step,
                0.0,
                self.margin,
                f"{self.direction.removesuffix('ing')} of {column} {name} "
                f"from {self.along} {text}".replace("  ", " "),
                unit,
            )
            for text, step in zip(texts, steps, strict=True)
        ]
        if self.diminishing:
            later = [i for i in range(len(steps)) if positions[i] >= self.diminishing_from]
            parts += [
                ValueComparison(
                    steps[i], steps[j], 0.0, f"step {texts[i]} of {column} minus {texts[j]}", unit
                )
                for i, j in pairwise(later)
            ]
        return parts

    def evidence(self, table: ValueTable) -> str:
        parts = []
        for column in self.columns():
            for name, (positions, draws) in self._groups(table, column).items():
                steps = ", ".join(
                    f"{p:g}: {table.format(column, float(v))}"
                    for p, v in zip(positions, draws[:, 0], strict=True)
                )
                parts.append(f"{name} {column} by {self.along} {steps}".strip())
        return "; ".join(parts)

    def _group_keys(self, table: ValueTable) -> Sequence[str]:
        """What rows of one trend share: the other axes, unless ``group_by`` says otherwise."""
        if self.group_by is not None:
            return self.group_by
        return [a for a in table.axes if a != self.along] if self.along in table.axes else []

    def _groups(self, table: ValueTable, column: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Positions and draws of each trend, in order."""
        positions = table.numeric(self.along)
        mask = table.mask(self.where) & ~np.isnan(positions)
        draws = dict(
            zip(np.flatnonzero(mask).tolist(), measured_draws(table, column, mask), strict=True)
        )
        groups: dict[str, list[int]] = {}
        for index in draws:
            attributes = table.row_attributes(index)
            labels = [str(attributes.get(key)) for key in self._group_keys(table)]
            groups.setdefault(" / ".join(labels), []).append(index)
        trends = {}
        for name, members in groups.items():
            order = sorted(members, key=lambda i: positions[i])
            if len(order) > 1:
                trends[name] = (positions[order], np.array([draws[i] for i in order]))
        if not trends:
            raise UndecidableClaim(f"no two rows differ only in {self.along}")
        return trends


@CLAIMS.register("linear_effect")
@dataclass(frozen=True)
class LinearEffectClaim(Predicate):
    """The main effect of a number of the rows on a column has a sign: the slope of a linear fit.

    The fit has all of ``covariates`` in it too, so that effects of a grid are separated.
    """

    column: str
    along: str
    sign: Literal["positive", "negative"]
    covariates: list[str] = field(default_factory=list)
    where: dict[str, Any] = field(default_factory=dict)

    def condition(self, table: ValueTable) -> Condition:
        slope = self._slope(table) * (1.0 if self.sign == "positive" else -1.0)
        direction = "rise" if self.sign == "positive" else "fall"
        name = f"{direction} of {self.column} per unit of {self.along}"
        return ValueComparison(slope, 0.0, 0.0, name, table.unit(self.column))

    def evidence(self, table: ValueTable) -> str:
        slope = table.format_difference(self.column, float(self._slope(table)[0]))
        return f"{slope} of {self.column} per unit of {self.along}"

    def _slope(self, table: ValueTable) -> Draws:
        mask = table.mask(self.where)
        draws = measured_draws(table, self.column, mask)
        terms = [table.numeric(name)[mask] for name in (self.along, *self.covariates)]
        design = np.stack([*terms, np.ones(len(draws))], axis=1)
        if np.isnan(design).any() or np.ptp(terms[0]) == 0:
            raise UndecidableClaim(f"{self.along} must be numeric and vary between rows")
        return np.asarray(np.linalg.lstsq(design, draws, rcond=None)[0][0])


@CLAIMS.register("correlation")
@dataclass(frozen=True)
class CorrelationClaim(Predicate):
    """Spearman's correlation of two columns, or of a column and a number of the rows.

    The rows are a sample, so that few of them decide little.
    """

    column: str
    other: str
    above: float | None = None
    below: float | None = None
    where: dict[str, Any] = field(default_factory=dict)

    def condition(self, table: ValueTable) -> Condition:
        x, y = self._pair(table)
        for column, draws in ((self.column, x), (self.other, y)):
            self._check_reliability(column, draws)
        z = spearman_fisher_draws(x, y)
        parts: list[Condition] = []
        name = f"Fisher z of Spearman({self.column}, {self.other}) minus that of the limit"
        if self.above is not None:
            parts.append(ValueComparison(z, _artanh(self.above), 0.0, name, "number"))
        if self.below is not None:
            parts.append(Negation(ValueComparison(z, _artanh(self.below), 0.0, name, "number")))
        return all_of(parts)

    def evidence(self, table: ValueTable) -> str:
        x, y = self._pair(table)
        estimate = spearman(x[:, 0], y[:, 0])
        low, high = estimate.interval
        text = f"Spearman({self.column}, {self.other}) = {estimate.value:.2f}"
        return f"{text} (95% over rows {low:.2f} to {high:.2f}, {len(x)} rows)"

    def _pair(self, table: ValueTable) -> tuple[np.ndarray, np.ndarray]:
        mask = table.mask(self.where)
        x = measured_draws(table, self.column, mask)
        if self.other in table.columns:
            y = measured_draws(table, self.other, mask)
        else:
            y = table.numeric(self.other)[mask][:, None]
        if len(x) < MIN_CORRELATION_ROWS or np.isnan(y[:, 0]).any():
            raise UndecidableClaim(
                f"too few rows: Spearman({self.column}, {self.other}) needs at least "
                f"{MIN_CORRELATION_ROWS} rows with both, but got {len(x)}"
            )
        if min(np.ptp(x[:, 0]), np.ptp(y[:, 0])) == 0:
            raise UndecidableClaim(
                f"Spearman({self.column}, {self.other}) needs values that differ; one is constant"
            )
        return x, y

    def _check_reliability(self, column: str, draws: np.ndarray) -> None:
        if draws.shape[1] < 2:
            return
        centered = draws[:, 1:] - draws[:, 1:].mean(axis=0)
        noise = float((centered - centered.mean(axis=1, keepdims=True)).var(axis=1).mean())
        if noise > (1 - MIN_RELIABILITY) * float(draws[:, 0].var(ddof=1)):
            raise UndecidableClaim(
                f"tied within their uncertainty: rows differ in {column} by little more than noise"
            )


def spearman_fisher_draws(x: np.ndarray, y: np.ndarray) -> Draws:
    """(1 + redraws,) artanh of Spearman's correlation of two (rows, 1 + redraws) arrays.

    The rows are a sample: the correlation over other rows varies as Bonett and Wright (2000) say.
    Noise of the values pulls a correlation towards zero, and a redraw has it twice; so redraws are
    reflected about the estimate.
    """
    count, redraws = len(x), max(x.shape[1], y.shape[1]) - 1
    estimate = spearman(x[:, 0], y[:, 0]).value
    if not redraws:
        return np.array([_artanh(estimate)])
    limit = 1 - 12 / (count**3 - count)  # of the order with two neighbors swapped
    z = _artanh(float(np.clip(estimate, -limit, limit)))
    redrawn = _column_correlations(*(_column_ranks(draws, (count, redraws)) for draws in (x, y)))
    error = math.sqrt((1 + math.tanh(z) ** 2 / 2) / (count - 3))
    noise = error * np.random.default_rng(count).standard_normal(redraws)
    return np.append(z, 2 * z - np.arctanh(np.clip(redrawn, -limit, limit)) + noise)


def _column_ranks(draws: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Ranks within each redraw; equal values share the mean of theirs."""
    from scipy.stats import rankdata

    return np.asarray(
        rankdata(np.broadcast_to(draws[:, 1:] if draws.shape[1] > 1 else draws, shape), axis=0)
    )


def _artanh(value: float) -> float:
    return math.atanh(max(-1 + 1e-12, min(1 - 1e-12, value)))


def _column_correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(redraws,) Pearson's correlation of two (rows, redraws) arrays; 0 where one is constant."""
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    scale = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))
    return np.asarray(
        np.divide((x * y).sum(axis=0), scale, out=np.zeros_like(scale), where=scale > 0)
    )


@CLAIMS.register("peak")
@dataclass(frozen=True)
class PeakClaim(Predicate):
    """A column rises, then falls along a number: its highest value is neither first nor last."""

    column: str
    along: str
    where: dict[str, Any] = field(default_factory=dict)
    position: float | None = None  # where the highest value is, if that is claimed too

    def condition(self, table: ValueTable) -> Condition:
        indices, positions, draws = self._sorted_rows(table)
        rows = list(zip(indices, draws, strict=True))
        if self.position is not None:
            peaks = [row for row, p in zip(rows, positions, strict=True) if p == self.position]
            if not peaks:
                raise UndecidableClaim(f"no row has {self.along} {self.position:g}")
            others = [row for row, p in zip(rows, positions, strict=True) if p != self.position]
            return all_of([row_above(table, self.column, peaks[0], other) for other in others])
        return all_of(
            [
                any_of([row_above(table, self.column, inner, end) for inner in rows[1:-1]])
                for end in (rows[0], rows[-1])
            ]
        )

    def evidence(self, table: ValueTable) -> str:
        _, positions, draws = self._sorted_rows(table)
        row_list = ", ".join(
            f"{p:g}: {table.format(self.column, float(v))}"
            for p, v in zip(positions, draws[:, 0], strict=True)
        )
        return f"{self.column} by {self.along} {row_list}"

    def _sorted_rows(self, table: ValueTable) -> tuple[list[int], np.ndarray, np.ndarray]:
        mask = table.mask(self.where)
        draws, positions = measured_draws(table, self.column, mask), table.numeric(self.along)[mask]
        if len(draws) < 3 or np.isnan(positions).any():
            raise UndecidableClaim(f"too few rows: a peak along {self.along} needs at least three")
        order = np.argsort(positions)
        return np.flatnonzero(mask)[order].tolist(), positions[order], draws[order]


@CLAIMS.register("value_range")
@dataclass(frozen=True)
class RangeClaim(Predicate):
    """Highest minus lowest of a column is below or above some points.

    With ``match_column`` only rows count that are near each other in another number, within the
    share ``match_tolerance`` of it; at least one such neighborhood must be spread so.
    """

    column: str
    below: float | None = None
    above: float | None = None
    where: dict[str, Any] = field(default_factory=dict)
    match_column: str = ""
    match_tolerance: float = 0.1

    def columns(self) -> Sequence[str]:
        return (self.column, self.match_column) if self.match_column else (self.column,)

    def condition(self, table: ValueTable) -> Condition:
        parts: list[Condition] = []
        if self.above is not None:
            parts.append(any_of(self._differences(table, self.above)))
        if self.below is not None:
            parts.append(all_of([Negation(d) for d in self._differences(table, self.below)]))
        return all_of(parts)

    def _differences(self, table: ValueTable, margin: float) -> list[ValueComparison]:
        """Every row minus every other row that is near it."""
        draws, is_neighbor, unit = *self._rows(table), table.unit(self.column)
        names = [table.row_name(int(i)) for i in np.flatnonzero(table.mask(self.where))]
        pairs = [
            (i, j)
            for i in range(len(draws))
            for j in range(len(draws))
            if i != j and is_neighbor[i, j]
        ]
        if not pairs:
            raise UndecidableClaim("too few rows: no two rows can be compared")
        return [
            ValueComparison(
                draws[i], draws[j], margin, f"{self.column} of {names[i]} minus {names[j]}", unit
            )
            for i, j in pairs
        ]

    def evidence(self, table: ValueTable) -> str:
        draws, is_neighbor = self._rows(table)
        gaps = np.where(is_neighbor, draws[:, :1] - draws[:, 0], 0.0)
        scope = f" among rows alike in {self.match_column}" if self.match_column else ""
        width = table.format_difference(self.column, float(gaps.max())).removeprefix("+")
        return f"{self.column} spans {width}{scope}"

    def _rows(self, table: ValueTable) -> tuple[np.ndarray, np.ndarray]:
        """Draws of the rows, and which of them are in one neighborhood."""
        mask = table.mask(self.where)
        draws = measured_draws(table, self.column, mask)
        if not self.match_column:
            return draws, np.ones((len(draws), len(draws)), dtype=bool)
        size = measured_values(table, self.match_column, mask)
        around = np.abs(size[None, :] / size[:, None] - 1) <= self.match_tolerance
        return draws, (around[:, :, None] & around[:, None, :]).any(axis=0)


@CLAIMS.register("sawtooth")
@dataclass(frozen=True)
class SawtoothClaim(Predicate):
    """Along each group of columns a row rises, and from a group to the next it falls.

    ``min_share`` is the share of steps, over all rows, that must go so; both kinds must reach it.
    """

    groups: list[list[str]]
    where: dict[str, Any] = field(default_factory=dict)
    min_share: float = 1.0

    def columns(self) -> Sequence[str]:
        return [column for group in self.groups for column in group]

    def condition(self, table: ValueTable) -> Condition:
        rises, falls = self._steps(table)
        return all_of([share_of(self.min_share, rises), share_of(self.min_share, falls)])

    def evidence(self, table: ValueTable) -> str:
        rises, falls = (
            np.mean([bool(step.truth()[0]) for step in steps]) for steps in self._steps(table)
        )
        return f"{rises:.0%} of the steps within a group rise, {falls:.0%} of those between fall"

    def _steps(self, table: ValueTable) -> tuple[list[ValueComparison], list[ValueComparison]]:
        mask, columns = table.mask(self.where), self.columns()
        names = [table.row_name(int(i)) for i in np.flatnonzero(mask)]
        ends = {group[-1] for group in self.groups}
        rises: list[ValueComparison] = []
        falls: list[ValueComparison] = []
        for first, second in pairwise(columns):
            sides = [measured_draws(table, column, mask) for column in (first, second)]
            for name, a, b in zip(names, *sides, strict=True):
                if first in ends:
                    text = f"fall from {first} to {second} of {name}"
                    falls.append(ValueComparison(a, b, 0.0, text, table.unit(first)))
                else:
                    text = f"rise from {first} to {second} of {name}"
                    rises.append(ValueComparison(b, a, 0.0, text, table.unit(first)))
        if not rises or not falls:
            raise UndecidableClaim(
                "sawtooth needs at least two groups, one of them with two or more columns"
            )
        return rises, falls
