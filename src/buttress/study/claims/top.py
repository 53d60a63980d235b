"""Which rows are best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from buttress.study.claims.core import CLAIMS, known
from buttress.study.table import View


@CLAIMS.register("top")
@dataclass(frozen=True)
class Top:
    """The ``count`` highest rows of a column are all of a kind; or the rows of a kind are on top.

    With ``all_of`` every row of the kind must be among the highest, with the default every one of
    the highest must be of the kind.
    """

    column: str
    where: dict[str, Any]
    count: int = 1
    all_of: bool = False

    def columns(self) -> Sequence[str]:
        return (self.column,)

    def holds(self, view: View) -> bool:
        best = set(self._best(view))
        kind = set(np.flatnonzero(view.mask(self.where)).tolist())
        known(view, self.column, view.mask(self.where))
        return kind <= best if self.all_of else best <= kind

    def evidence(self, view: View) -> str:
        values = view.values(self.column)
        listed = ", ".join(f"{view.name(i)} {100 * values[i]:.1f}" for i in self._best(view))
        return f"highest in {self.column}: {listed}"

    def _best(self, view: View) -> list[int]:
        values = known(view, self.column)
        return [int(i) for i in np.argsort(-values, kind="stable")[: self.count]]


@CLAIMS.register("differ_at_top")
@dataclass(frozen=True)
class DifferAtTop:
    """Two columns have different best rows."""

    column: str
    other: str

    def columns(self) -> Sequence[str]:
        return (self.column, self.other)

    def holds(self, view: View) -> bool:
        return bool(np.argmax(known(view, self.column)) != np.argmax(known(view, self.other)))

    def evidence(self, view: View) -> str:
        names = [view.name(int(np.argmax(known(view, c)))) for c in self.columns()]
        return f"best in {self.column}: {names[0]}; best in {self.other}: {names[1]}"


@CLAIMS.register("unbeaten")
@dataclass(frozen=True)
class Unbeaten:
    """No other row is above the rows of a kind by more than ``margin``."""

    column: str
    where: dict[str, Any]
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return (self.column,)

    def holds(self, view: View) -> bool:
        mine, theirs = self._sides(view)
        return bool(theirs.max() - mine.max() <= self.margin)

    def evidence(self, view: View) -> str:
        mine, theirs = self._sides(view)
        above = int((theirs > mine.max()).sum())
        best = f"{100 * mine.max():.1f} against {100 * theirs.max():.1f} of the best other row"
        return f"{self.column}: {best}; {above} of {len(theirs)} others are above"

    def _sides(self, view: View) -> tuple[np.ndarray, np.ndarray]:
        kind = view.mask(self.where)
        return known(view, self.column, kind), known(view, self.column, ~kind)
