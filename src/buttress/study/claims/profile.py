"""How numbers go along the depth of a network, where each depth is a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from buttress.study.claims.core import CLAIMS, Cannot, known
from buttress.study.table import View


@CLAIMS.register("sawtooth")
@dataclass(frozen=True)
class Sawtooth:
    """Along each group of columns a row rises, and from a group to the next it falls.

    ``at_least`` is the share of steps, over all rows, that must go so; both kinds must reach it.
    """

    groups: list[list[str]]
    where: dict[str, Any] = field(default_factory=dict)
    at_least: float = 1.0

    def columns(self) -> Sequence[str]:
        return [column for group in self.groups for column in group]

    def holds(self, view: View) -> bool:
        rises, falls = self._shares(view)
        return min(rises, falls) >= self.at_least

    def evidence(self, view: View) -> str:
        rises, falls = self._shares(view)
        return f"{rises:.0%} of the steps within a group rise, {falls:.0%} of those between fall"

    def _shares(self, view: View) -> tuple[float, float]:
        chosen = view.mask(self.where)
        steps = np.diff([known(view, column, chosen) for column in self.columns()], axis=0)
        ends = np.cumsum([len(group) for group in self.groups])[:-1] - 1
        between = np.isin(np.arange(len(steps)), ends)
        if not between.any() or between.all():
            raise Cannot("it needs two groups, and two columns in one of them")
        return float((steps[~between] > 0).mean()), float((steps[between] < 0).mean())
