"""Pareto fronts: points that no other point dominates."""

from __future__ import annotations

from collections.abc import Sequence

ParetoPoint = tuple[float, ...]  # more is better in each


def dominates(first: ParetoPoint, second: ParetoPoint) -> bool:
    return all(a >= b for a, b in zip(first, second, strict=True)) and first != second


def pareto_front(points: Sequence[ParetoPoint]) -> list[int]:
    """Indices of the points that no other dominates; equal points are all included."""
    return [i for i, p in enumerate(points) if not any(dominates(q, p) for q in points)]


def possible_front(low: Sequence[ParetoPoint], high: Sequence[ParetoPoint]) -> list[int]:
    """Indices of points that may be on the front, given their intervals.

    A point is out only if another at the low ends of its intervals beats it at the high ends.
    """
    return [
        i
        for i, best in enumerate(high)
        if not any(dominates(q, best) for j, q in enumerate(low) if j != i)
    ]
