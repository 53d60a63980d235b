"""What the numbers of single rows are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from buttress.study.claims.core import CLAIMS, known
from buttress.study.table import View

SHOWN = 6  # rows that evidence lists


@CLAIMS.register("between")
@dataclass(frozen=True)
class Between:
    """Every row of a kind has a number above ``low`` and below ``high``, where these are given."""

    column: str
    low: float = -math.inf
    high: float = math.inf
    where: dict[str, Any] = field(default_factory=dict)

    def columns(self) -> Sequence[str]:
        return (self.column,)

    def holds(self, view: View) -> bool:
        values = known(view, self.column, view.mask(self.where))
        return bool(((values > self.low) & (values < self.high)).all())

    def evidence(self, view: View) -> str:
        chosen = view.mask(self.where)
        values = known(view, self.column, chosen)
        names = [view.name(i) for i, is_chosen in enumerate(chosen) if is_chosen]
        pairs = [f"{n} {v:.3g}" for n, v in zip(names, values, strict=True)]
        return f"{self.column}: {', '.join(pairs[:SHOWN])}" + (" ..." if len(pairs) > SHOWN else "")


@CLAIMS.register("columns_order")
@dataclass(frozen=True)
class ColumnsOrder:
    """In every row of a kind the columns named are in falling order."""

    order: list[str]
    where: dict[str, Any] = field(default_factory=dict)
    margin: float = 0.0

    def columns(self) -> Sequence[str]:
        return self.order

    def holds(self, view: View) -> bool:
        chosen = view.mask(self.where)
        values = [known(view, column, chosen) for column in self.order]
        return all(bool((a - b > self.margin).all()) for a, b in pairwise(values))

    def evidence(self, view: View) -> str:
        chosen = view.mask(self.where)
        means = {column: known(view, column, chosen).mean() for column in self.order}
        return ", ".join(f"{column} {100 * mean:.1f}" for column, mean in means.items())


@CLAIMS.register("not")
@dataclass(frozen=True)
class Not:
    """Another claim is false."""

    of: dict[str, Any]  # its name and args

    def part(self) -> Any:
        return CLAIMS.create(self.of["name"], self.of.get("args", {}))

    def columns(self) -> Sequence[str]:
        found: Sequence[str] = self.part().columns()
        return found

    def holds(self, view: View) -> bool:
        return not self.part().holds(view)

    def evidence(self, view: View) -> str:
        return str(self.part().evidence(view))
