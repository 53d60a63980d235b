"""How a column goes along an order or with another column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from buttress.errors import UserError
from buttress.statistics import spearman
from buttress.study.claims.core import CLAIMS, Cannot, known
from buttress.study.table import View


@CLAIMS.register("order")
@dataclass(frozen=True)
class Order:
    """Rows picked one by one are in falling order in every column; ``margin`` allows near ties.

    A step is ``a > b`` if ``a - b > margin``; a negative margin lets a step fail by that much.
    """

    column: str | list[str]
    rows: list[dict[str, Any]]
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return [self.column] if isinstance(self.column, str) else self.column

    def holds(self, view: View) -> bool:
        return all(
            a - b > self.margin
            for column in self.columns()
            for a, b in pairwise(self._values(view, column))
        )

    def evidence(self, view: View) -> str:
        return "; ".join(
            f"{c}: " + " > ".join(_shown(v) for v in self._values(view, c)) for c in self.columns()
        )

    def _values(self, view: View, column: str) -> list[float]:
        return [float(known(view, column, view.mask(where)).mean()) for where in self.rows]


@CLAIMS.register("monotone")
@dataclass(frozen=True)
class Monotone:
    """A column rises or falls with a number of the rows, in each group that is else alike.

    ``diminishing`` asks that the steps get smaller too, from ``diminishing_from`` on.
    """

    column: str | list[str]
    along: str
    direction: Literal["rising", "falling"] = "rising"
    where: dict[str, Any] = field(default_factory=dict)
    by: list[str] | None = None  # labels or attributes that tell groups apart
    diminishing: bool = False
    diminishing_from: float = float("-inf")
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return [self.column] if isinstance(self.column, str) else self.column

    def holds(self, view: View) -> bool:
        sign = 1.0 if self.direction == "rising" else -1.0
        for column in self.columns():
            for at, values in self._groups(view, column).values():
                steps = sign * np.diff(values)
                late = steps[at[:-1] >= self.diminishing_from]
                if (steps <= self.margin).any():
                    return False
                if self.diminishing and (np.diff(late) >= 0).any():
                    return False
        return True

    def evidence(self, view: View) -> str:
        parts = []
        for column in self.columns():
            for name, (at, values) in self._groups(view, column).items():
                steps = ", ".join(f"{a:g}: {_shown(v)}" for a, v in zip(at, values, strict=True))
                parts.append(f"{name} {column} by {self.along} {steps}".strip())
        return "; ".join(parts)

    def _apart(self, view: View) -> Sequence[str]:
        """What rows of one trend share: the other axes, unless ``by`` says otherwise."""
        if self.by is not None:
            return self.by
        return [axis for axis in view.axes if axis != self.along] if self.along in view.axes else []

    def _groups(self, view: View, column: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        at, chosen = view.numbers(self.along), view.mask(self.where)
        known(view, column, chosen)
        values = view.values(column)
        groups: dict[str, list[int]] = {}
        for index in np.flatnonzero(chosen & ~np.isnan(at)):
            about = view.about(int(index))
            alike = [str(about.get(key)) for key in self._apart(view)]
            groups.setdefault(" / ".join(alike), []).append(int(index))
        found = {}
        for name, members in groups.items():
            order = sorted(members, key=lambda i: at[i])
            if len(order) > 1:
                found[name] = (at[order], values[order])
        if not found:
            raise Cannot(f"no two rows differ in {self.along} alone")
        return found


def _shown(value: float) -> str:
    return f"{100 * value:.1f}" if abs(value) <= 1 else f"{value:.4g}"


@CLAIMS.register("effect")
@dataclass(frozen=True)
class Effect:
    """The main effect of a number of the rows on a column has a sign: the slope of a linear fit.

    The fit has all of ``beside`` in it too, so that effects of a grid are told apart.
    """

    column: str
    along: str
    sign: Literal["positive", "negative"]
    beside: list[str] = field(default_factory=list)
    where: dict[str, Any] = field(default_factory=dict)

    def columns(self) -> Sequence[str]:
        return (self.column,)

    def holds(self, view: View) -> bool:
        slope = self._slope(view)
        return slope > 0 if self.sign == "positive" else slope < 0

    def evidence(self, view: View) -> str:
        return f"{100 * self._slope(view):+.2f} points of {self.column} per unit of {self.along}"

    def _slope(self, view: View) -> float:
        chosen = view.mask(self.where)
        values = known(view, self.column, chosen)
        terms = [view.numbers(name)[chosen] for name in (self.along, *self.beside)]
        design = np.stack([*terms, np.ones(len(values))], axis=1)
        if np.isnan(design).any() or np.ptp(terms[0]) == 0:
            raise Cannot(f"{self.along} is not a number that differs between rows")
        return float(np.linalg.lstsq(design, values, rcond=None)[0][0])


@CLAIMS.register("correlation")
@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation of two columns, or of a column and a number of the rows."""

    column: str
    other: str
    above: float | None = None
    below: float | None = None
    where: dict[str, Any] = field(default_factory=dict)

    def columns(self) -> Sequence[str]:
        return (self.column,)

    def holds(self, view: View) -> bool:
        value = self._value(view)
        high_enough = self.above is None or value > self.above
        return high_enough and (self.below is None or value <= self.below)

    def evidence(self, view: View) -> str:
        return f"Spearman({self.column}, {self.other}) = {self._value(view):.2f}"

    def _value(self, view: View) -> float:
        chosen = view.mask(self.where)
        mine = known(view, self.column, chosen)
        is_column = self.other in view.columns
        numbers = view.numbers(self.other)[chosen]
        theirs = known(view, self.other, chosen) if is_column else numbers
        if len(mine) < 3 or np.isnan(theirs).any():
            raise Cannot(f"Spearman({self.column}, {self.other}) needs three rows with both")
        try:
            return spearman(mine, theirs).value
        except UserError as error:  # all values alike: neither a rising order nor a falling one
            raise Cannot(f"Spearman({self.column}, {self.other}): {error}") from None


@CLAIMS.register("peak")
@dataclass(frozen=True)
class Peak:
    """A column rises, then falls along a number: its highest value is neither first nor last."""

    column: str
    along: str
    where: dict[str, Any] = field(default_factory=dict)
    at: float | None = None  # where the highest value is, if that is claimed too

    def columns(self) -> Sequence[str]:
        return (self.column,)

    def holds(self, view: View) -> bool:
        places, values = self._sorted(view)
        best = int(np.argmax(values))
        if self.at is not None:
            return bool(places[best] == self.at)
        return 0 < best < len(values) - 1

    def evidence(self, view: View) -> str:
        places, values = self._sorted(view)
        listed = ", ".join(f"{p:g}: {_shown(v)}" for p, v in zip(places, values, strict=True))
        return f"{self.column} by {self.along} {listed}"

    def _sorted(self, view: View) -> tuple[np.ndarray, np.ndarray]:
        chosen = view.mask(self.where)
        values, at = known(view, self.column, chosen), view.numbers(self.along)[chosen]
        if len(values) < 3 or np.isnan(at).any():
            raise Cannot(f"a peak along {self.along} needs three rows")
        order = np.argsort(at)
        return at[order], values[order]


@CLAIMS.register("spread")
@dataclass(frozen=True)
class Spread:
    """Highest minus lowest of a column is below or above some points.

    With ``within`` only rows count that are near each other in another number: within this share
    of it, at least one such neighbourhood must be spread so.
    """

    column: str
    below: float | None = None
    above: float | None = None
    where: dict[str, Any] = field(default_factory=dict)
    near: str = ""
    within: float = 0.1

    def columns(self) -> Sequence[str]:
        return (self.column, self.near) if self.near else (self.column,)

    def holds(self, view: View) -> bool:
        width = self._width(view)
        return (self.below is None or width < self.below) and (
            self.above is None or width > self.above
        )

    def evidence(self, view: View) -> str:
        like = f" among rows alike in {self.near}" if self.near else ""
        return f"{self.column} spans {100 * self._width(view):.1f} points{like}"

    def _width(self, view: View) -> float:
        chosen = view.mask(self.where)
        values = known(view, self.column, chosen)
        if not self.near:
            return float(np.ptp(values))
        size = known(view, self.near, chosen)
        alike = [np.abs(size / s - 1) <= self.within for s in size]
        return max(float(np.ptp(values[group])) for group in alike)


@CLAIMS.register("all")
@dataclass(frozen=True)
class All:
    """Several claims at once."""

    of: list[dict[str, Any]]  # name and args of each

    def parts(self) -> list[Any]:
        return [CLAIMS.create(part["name"], part.get("args", {})) for part in self.of]

    def columns(self) -> Sequence[str]:
        return [column for part in self.parts() for column in part.columns()]

    def holds(self, view: View) -> bool:
        return all(part.holds(view) for part in self.parts())

    def evidence(self, view: View) -> str:
        return "; ".join(part.evidence(view) for part in self.parts())
