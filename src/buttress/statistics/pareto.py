"""Pareto fronts: points that no other point beats in everything."""

from __future__ import annotations

from collections.abc import Sequence

ParetoPoint = tuple[float, ...]  # more is better in each


def dominates(first: ParetoPoint, second: ParetoPoint) -> bool:
    """Whether a point is as good in everything and better in something."""
    return all(a >= b for a, b in zip(first, second, strict=True)) and first != second


def pareto_front(points: Sequence[ParetoPoint]) -> list[int]:
    """The positions of the points that none beats; equal points stand together."""
    return [i for i, p in enumerate(points) if not any(dominates(q, p) for q in points)]


def possible_front(low: Sequence[ParetoPoint], high: Sequence[ParetoPoint]) -> list[int]:
    """The positions that chance could put on the front.

    A point is out only if another at the low ends of its intervals beats it at the high ends.
    """
    return [
        i
        for i, best in enumerate(high)
        if not any(dominates(q, best) for j, q in enumerate(low) if j != i)
    ]
