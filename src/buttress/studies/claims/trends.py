"""Claims on trends, correlations, peaks and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from buttress.errors import UserError
from buttress.statistics import spearman
from buttress.studies.claims.core import CLAIMS, UndecidableClaim, measured_values
from buttress.studies.table import ValueTable


@CLAIMS.register("row_order")
@dataclass(frozen=True)
class RowOrderClaim:
    """Rows picked one by one are in falling order in every column; ``margin`` allows near ties.

    A step is ``a > b`` if ``a - b > margin``; a negative margin lets a step fail by that much.
    """

    column: str | list[str]
    rows: list[dict[str, Any]]
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return [self.column] if isinstance(self.column, str) else self.column

    def holds(self, view: ValueTable) -> bool:
        return all(
            a - b > self.margin
            for column in self.columns()
            for a, b in pairwise(self._values(view, column))
        )

    def evidence(self, view: ValueTable) -> str:
        return "; ".join(
            f"{c}: " + " > ".join(_format_value(v) for v in self._values(view, c))
            for c in self.columns()
        )

    def _values(self, view: ValueTable, column: str) -> list[float]:
        return [
            float(measured_values(view, column, view.mask(where)).mean()) for where in self.rows
        ]


@CLAIMS.register("monotone")
@dataclass(frozen=True)
class MonotoneClaim:
    """A column rises or falls with a number of the rows, in each group that is else alike.

    ``diminishing`` asks that the steps get smaller too, from ``diminishing_from`` on.
    """

    column: str | list[str]
    along: str
    direction: Literal["rising", "falling"] = "rising"
    where: dict[str, Any] = field(default_factory=dict)
    group_by: list[str] | None = None  # labels or attributes that tell groups apart
    diminishing: bool = False
    diminishing_from: float = float("-inf")
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return [self.column] if isinstance(self.column, str) else self.column

    def holds(self, view: ValueTable) -> bool:
        sign = 1.0 if self.direction == "rising" else -1.0
        for column in self.columns():
            for at, values in self._groups(view, column).values():
                steps = sign * np.diff(values)
                later_steps = steps[at[:-1] >= self.diminishing_from]
                if (steps <= self.margin).any():
                    return False
                if self.diminishing and (np.diff(later_steps) >= 0).any():
                    return False
        return True

    def evidence(self, view: ValueTable) -> str:
        parts = []
        for column in self.columns():
            for name, (at, values) in self._groups(view, column).items():
                steps = ", ".join(
                    f"{a:g}: {_format_value(v)}" for a, v in zip(at, values, strict=True)
                )
                parts.append(f"{name} {column} by {self.along} {steps}".strip())
        return "; ".join(parts)

    def _group_keys(self, view: ValueTable) -> Sequence[str]:
        """What rows of one trend share: the other axes, unless ``group_by`` says otherwise."""
        if self.group_by is not None:
            return self.group_by
        return [axis for axis in view.axes if axis != self.along] if self.along in view.axes else []

    def _groups(self, view: ValueTable, column: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        positions, row_mask = view.numeric(self.along), view.mask(self.where)
        measured_values(view, column, row_mask)
        values = view.values(column)
        groups: dict[str, list[int]] = {}
        for index in np.flatnonzero(row_mask & ~np.isnan(positions)):
            about = view.row_attributes(int(index))
            group_labels = [str(about.get(key)) for key in self._group_keys(view)]
            groups.setdefault(" / ".join(group_labels), []).append(int(index))
        trends = {}
        for name, members in groups.items():
            order = sorted(members, key=lambda i: positions[i])
            if len(order) > 1:
                trends[name] = (positions[order], values[order])
        if not trends:
            raise UndecidableClaim(f"no two rows differ only in {self.along}")
        return trends


def _format_value(value: float) -> str:
    return f"{100 * value:.1f}" if abs(value) <= 1 else f"{value:.4g}"


@CLAIMS.register("linear_effect")
@dataclass(frozen=True)
class LinearEffectClaim:
    """The main effect of a number of the rows on a column has a sign: the slope of a linear fit.

    The fit has all of ``covariates`` in it too, so that effects of a grid are told apart.
    """

    column: str
    along: str
    sign: Literal["positive", "negative"]
    covariates: list[str] = field(default_factory=list)
    where: dict[str, Any] = field(default_factory=dict)

    def columns(self) -> Sequence[str]:
        return (self.column,)

    def holds(self, view: ValueTable) -> bool:
        slope = self._slope(view)
        return slope > 0 if self.sign == "positive" else slope < 0

    def evidence(self, view: ValueTable) -> str:
        return f"{100 * self._slope(view):+.2f} points of {self.column} per unit of {self.along}"

    def _slope(self, view: ValueTable) -> float:
        row_mask = view.mask(self.where)
        values = measured_values(view, self.column, row_mask)
        terms = [view.numeric(name)[row_mask] for name in (self.along, *self.covariates)]
        design = np.stack([*terms, np.ones(len(values))], axis=1)
        if np.isnan(design).any() or np.ptp(terms[0]) == 0:
            raise UndecidableClaim(f"{self.along} must be numeric and vary between rows")
        return float(np.linalg.lstsq(design, values, rcond=None)[0][0])


@CLAIMS.register("correlation")
@dataclass(frozen=True)
class CorrelationClaim:
    """Spearman's correlation of two columns, or of a column and a number of the rows."""

    column: str
    other: str
    above: float | None = None
    below: float | None = None
    where: dict[str, Any] = field(default_factory=dict)

    def columns(self) -> Sequence[str]:
        return (self.column,)

    def holds(self, view: ValueTable) -> bool:
        value = self._value(view)
        high_enough = self.above is None or value > self.above
        return high_enough and (self.below is None or value <= self.below)

    def evidence(self, view: ValueTable) -> str:
        return f"Spearman({self.column}, {self.other}) = {self._value(view):.2f}"

    def _value(self, view: ValueTable) -> float:
        row_mask = view.mask(self.where)
        x = measured_values(view, self.column, row_mask)
        is_column = self.other in view.columns
        numbers = view.numeric(self.other)[row_mask]
        y = measured_values(view, self.other, row_mask) if is_column else numbers
        if len(x) < 3 or np.isnan(y).any():
            raise UndecidableClaim(
                f"Spearman({self.column}, {self.other}) needs at least three rows with both"
            )
        try:
            return spearman(x, y).value
        except UserError as error:  # all values alike: neither a rising order nor a falling one
            raise UndecidableClaim(f"Spearman({self.column}, {self.other}): {error}") from None


@CLAIMS.register("peak")
@dataclass(frozen=True)
class PeakClaim:
    """A column rises, then falls along a number: its highest value is neither first nor last."""

    column: str
    along: str
    where: dict[str, Any] = field(default_factory=dict)
    position: float | None = None  # where the highest value is, if that is claimed too

    def columns(self) -> Sequence[str]:
        return (self.column,)

    def holds(self, view: ValueTable) -> bool:
        positions, values = self._sorted_values(view)
        best = int(np.argmax(values))
        if self.position is not None:
            return bool(positions[best] == self.position)
        return 0 < best < len(values) - 1

    def evidence(self, view: ValueTable) -> str:
        positions, values = self._sorted_values(view)
        listed = ", ".join(
            f"{p:g}: {_format_value(v)}" for p, v in zip(positions, values, strict=True)
        )
        return f"{self.column} by {self.along} {listed}"

    def _sorted_values(self, view: ValueTable) -> tuple[np.ndarray, np.ndarray]:
        row_mask = view.mask(self.where)
        values, at = (
            measured_values(view, self.column, row_mask),
            view.numeric(self.along)[row_mask],
        )
        if len(values) < 3 or np.isnan(at).any():
            raise UndecidableClaim(f"a peak along {self.along} needs at least three rows")
        order = np.argsort(at)
        return at[order], values[order]


@CLAIMS.register("value_range")
@dataclass(frozen=True)
class RangeClaim:
    """Highest minus lowest of a column is below or above some points.

    With ``match_tolerance`` only rows count that are near each other in another number: within this
    share of it, at least one such neighbourhood must be spread so.
    """

    column: str
    below: float | None = None
    above: float | None = None
    where: dict[str, Any] = field(default_factory=dict)
    match_column: str = ""
    match_tolerance: float = 0.1

    def columns(self) -> Sequence[str]:
        return (self.column, self.match_column) if self.match_column else (self.column,)

    def holds(self, view: ValueTable) -> bool:
        width = self._value_range(view)
        return (self.below is None or width < self.below) and (
            self.above is None or width > self.above
        )

    def evidence(self, view: ValueTable) -> str:
        scope_text = f" among rows alike in {self.match_column}" if self.match_column else ""
        return f"{self.column} spans {100 * self._value_range(view):.1f} points{scope_text}"

    def _value_range(self, view: ValueTable) -> float:
        row_mask = view.mask(self.where)
        values = measured_values(view, self.column, row_mask)
        if not self.match_column:
            return float(np.ptp(values))
        size = measured_values(view, self.match_column, row_mask)
        neighborhoods = [np.abs(size / s - 1) <= self.match_tolerance for s in size]
        return max(float(np.ptp(values[group])) for group in neighborhoods)


@CLAIMS.register("all")
@dataclass(frozen=True)
class AllClaims:
    """Several claims at once."""

    claims: list[dict[str, Any]]  # name and args of each

    def predicates(self) -> list[Any]:
        return [CLAIMS.create(part["name"], part.get("args", {})) for part in self.claims]

    def columns(self) -> Sequence[str]:
        return [column for part in self.predicates() for column in part.columns()]

    def holds(self, view: ValueTable) -> bool:
        return all(part.holds(view) for part in self.predicates())

    def evidence(self, view: ValueTable) -> str:
        return "; ".join(part.evidence(view) for part in self.predicates())


@CLAIMS.register("sawtooth")
@dataclass(frozen=True)
class SawtoothClaim:
    """Along each group of columns a row rises, and from a group to the next it falls.

    ``min_share`` is the share of steps, over all rows, that must go so; both kinds must reach it.
    """

    groups: list[list[str]]
    where: dict[str, Any] = field(default_factory=dict)
    min_share: float = 1.0

    def columns(self) -> Sequence[str]:
        return [column for group in self.groups for column in group]

    def holds(self, view: ValueTable) -> bool:
        rises, falls = self._step_shares(view)
        return min(rises, falls) >= self.min_share

    def evidence(self, view: ValueTable) -> str:
        rises, falls = self._step_shares(view)
        return f"{rises:.0%} of the steps within a group rise, {falls:.0%} of those between fall"

    def _step_shares(self, view: ValueTable) -> tuple[float, float]:
        row_mask = view.mask(self.where)
        steps = np.diff(
            [measured_values(view, column, row_mask) for column in self.columns()], axis=0
        )
        ends = np.cumsum([len(group) for group in self.groups])[:-1] - 1
        between = np.isin(np.arange(len(steps)), ends)
        if not between.any() or between.all():
            raise UndecidableClaim(
                "sawtooth needs at least two groups, one of them with two or more columns"
            )
        return float((steps[~between] > 0).mean()), float((steps[between] < 0).mean())
