"""Three-valued logic: comparisons of uncertain quantities, and conditions made of them.

A condition is firmly true, firmly false or open. If each comparison errs with probability ``level``
at most, then so does every condition:

- at least ``k`` of ``n`` parts are true if ``k`` of them are at ``level / (n - k + 1)``: with ``j <
  k`` true parts ``k - j`` of the ``n - j`` others would have to err, which by Markov's inequality
  has probability ``(n - j) / (k - j) * level / (n - k + 1) <= level`` at most;
- fewer than ``k`` are true if ``n - k + 1`` of them are false at ``level / k``, likewise.

All of ``n`` is ``k = n``, any of them ``k = 1``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from buttress.studies.table import format_difference

Draws = NDArray[np.float64]  # (1 + redraws,): the estimate, then its value in every redrawn table
LEVEL = 0.025  # error probability of a firm outcome: a two-sided 95% interval excludes the other
MIN_TAIL_DRAWS = 10  # a smaller tail of the redraws is extrapolated
_z = NormalDist().inv_cdf


class Condition(Protocol):
    """A statement about a table that is true or false in every redraw of it."""

    def truth(self) -> NDArray[np.bool_]:
        """(1 + redraws,) whether it is true in the table and in each redraw."""
        ...

    def is_firm(self, truth: bool, level: float = LEVEL) -> bool:
        """Whether it is ``truth`` with an error probability of ``level`` at most."""
        ...

    def open_comparisons(self) -> list[ValueComparison]:
        """The comparisons that are neither firmly true nor firmly false."""
        ...


@dataclass(frozen=True)
class ValueComparison:
    """``left - right > margin``; ``name`` says of what the difference is."""

    left: Draws
    right: Draws | float
    margin: float = 0.0
    name: str = ""
    unit: str = "percent"

    @property
    def difference(self) -> Draws:
        return np.asarray(self.left - self.right, dtype=np.float64)

    def truth(self) -> NDArray[np.bool_]:
        return self.difference > self.margin

    def is_firm(self, truth: bool, level: float = LEVEL) -> bool:
        """Whether at most the share ``level`` of the redraws says otherwise.

        Where that would be fewer than `MIN_TAIL_DRAWS`, the tail beyond them is taken as normal.
        """
        excess = self.difference - self.margin if truth else self.margin - self.difference
        estimate, draws = float(excess[0]), excess[1:]
        if estimate < 0 or (truth and estimate == 0):
            return False
        if not len(draws):
            return True
        opposed = np.count_nonzero(draws <= 0 if truth else draws < 0)
        tail = max(math.floor(level * len(draws)), MIN_TAIL_DRAWS)
        if opposed > tail or tail >= len(draws):
            return False
        tail_level = tail / len(draws)
        if level >= tail_level or np.ptp(draws) == 0:
            return True
        quantile = float(np.partition(draws, tail)[tail])
        return estimate + (quantile - estimate) * _z(level) / _z(tail_level) > 0

    def open_comparisons(self) -> list[ValueComparison]:
        return [] if self.is_firm(True) or self.is_firm(False) else [self]

    def __str__(self) -> str:
        estimate, draws = self.difference[0], self.difference[1:]
        low, high = np.quantile(draws, (0.025, 0.975)) if len(draws) else (estimate, estimate)
        numbers = [format_difference(float(v), self.unit) for v in (estimate, low, high)]
        return f"{self.name} is {numbers[0]} (95% {numbers[1]} to {numbers[2]})"


@dataclass(frozen=True)
class AtLeast:
    """At least ``count`` of the parts are true."""

    count: int
    parts: Sequence[Condition]

    def truth(self) -> NDArray[np.bool_]:
        return np.sum([part.truth() for part in self.parts], axis=0) >= self.count

    def is_firm(self, truth: bool, level: float = LEVEL) -> bool:
        needed = self.count if truth else len(self.parts) - self.count + 1
        if needed < 1:
            return True
        part_level = level / (len(self.parts) - needed + 1)
        return sum(part.is_firm(truth, part_level) for part in self.parts) >= needed

    def open_comparisons(self) -> list[ValueComparison]:
        return [comparison for part in self.parts for comparison in part.open_comparisons()]


@dataclass(frozen=True)
class Negation:
    """The part is false."""

    part: Condition

    def truth(self) -> NDArray[np.bool_]:
        return ~self.part.truth()

    def is_firm(self, truth: bool, level: float = LEVEL) -> bool:
        return self.part.is_firm(not truth, level)

    def open_comparisons(self) -> list[ValueComparison]:
        return self.part.open_comparisons()


def all_of(parts: Sequence[Condition]) -> AtLeast:
    return AtLeast(len(parts), parts)


def any_of(parts: Sequence[Condition]) -> AtLeast:
    return AtLeast(1, parts)


def share_of(share: float, parts: Sequence[Condition]) -> AtLeast:
    """At least this share of the parts is true."""
    return AtLeast(math.ceil(share * len(parts) - 1e-9), parts)
