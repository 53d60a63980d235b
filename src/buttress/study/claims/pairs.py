"""Rows against the rows they are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from buttress.study.claims.core import CLAIMS, Cannot, known
from buttress.study.table import View


@CLAIMS.register("gain")
@dataclass(frozen=True)
class Gain:
    """Rows of one kind are above those of another that they share some labels with.

    ``by`` is what a pair shares, ``at_least`` the share of cells (pair and column) that must gain
    more than ``margin``. Cells of ``unless`` are not asked: each is a kind of rows, with the
    columns it is about.
    """

    column: list[str]
    where: dict[str, Any]
    than: dict[str, Any]
    by: list[str]
    margin: float = 0.0
    at_least: float = 1.0
    unless: list[dict[str, Any]] = field(default_factory=list)

    def columns(self) -> Sequence[str]:
        return self.column

    def holds(self, view: View) -> bool:
        gains = np.array([gain for _, gain in self._gains(view)])
        return bool(np.mean(gains > self.margin) >= self.at_least)

    def evidence(self, view: View) -> str:
        gains = self._gains(view)
        values = 100 * np.array([gain for _, gain in gains])
        text = (
            f"{values.mean():+.2f} points in the mean, {values.min():+.2f} to {values.max():+.2f}"
        )
        failing = [f"{name} {100 * gain:+.2f}" for name, gain in gains if gain <= self.margin]
        text += f", a gain in {len(gains) - len(failing)} of {len(gains)} cells"
        return text + (f"; not in {', '.join(failing[:6])}" if failing else "")

    def _gains(self, view: View) -> list[tuple[str, float]]:
        """What each cell gained, with its name."""
        found = []
        for mine, base in self._pairs(view):
            for column in self.column:
                if self._is_excused(view, mine, column):
                    continue
                both = np.zeros(len(view.rows), dtype=bool)
                both[[mine, base]] = True
                known(view, column, both)
                values = view.values(column)
                found.append((f"{view.name(mine)} {column}", float(values[mine] - values[base])))
        if not found:
            raise Cannot("no row of the table has its counterpart")
        return found

    def _pairs(self, view: View) -> list[tuple[int, int]]:
        bases = {self._shared(view, i): i for i in np.flatnonzero(view.mask(self.than)).tolist()}
        mine = np.flatnonzero(view.mask(self.where)).tolist()
        return [(i, bases[key]) for i in mine if (key := self._shared(view, i)) in bases]

    def _shared(self, view: View, index: int) -> tuple[str, ...]:
        about = view.about(index)
        return tuple(str(about.get(key)) for key in self.by)

    def _is_excused(self, view: View, index: int, column: str) -> bool:
        for case in self.unless:
            kind = {key: value for key, value in case.items() if key != "column"}
            if column in case.get("column", [column]) and view.mask(kind)[index]:
                return True
        return False


@CLAIMS.register("smaller_drop")
@dataclass(frozen=True)
class SmallerDrop:
    """From one row to another a column falls by less than between two others, in every column."""

    column: str | list[str]
    rows: list[dict[str, Any]]  # from, to
    than: list[dict[str, Any]]  # from, to

    def columns(self) -> Sequence[str]:
        return [self.column] if isinstance(self.column, str) else self.column

    def holds(self, view: View) -> bool:
        return all(
            mine < theirs for mine, theirs in map(lambda c: self._drops(view, c), self.columns())
        )

    def evidence(self, view: View) -> str:
        parts = []
        for column in self.columns():
            mine, theirs = self._drops(view, column)
            parts.append(f"{column} falls by {100 * mine:.1f} against {100 * theirs:.1f}")
        return "; ".join(parts)

    def _drops(self, view: View, column: str) -> tuple[float, float]:
        return _drop(view, column, self.rows), _drop(view, column, self.than)


def _drop(view: View, column: str, ends: Sequence[dict[str, Any]]) -> float:
    before, after = (float(known(view, column, view.mask(where)).mean()) for where in ends)
    return before - after
