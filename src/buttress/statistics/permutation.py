"""Whether a rank correlation could be chance: the same lists, in other orders."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import permutations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from buttress.statistics.ranks import average_ranks, spearman

ALL_ORDERS = 8  # points: up to here every order is tried, 40,320 of them
DRAWS = 19_999
SLACK = 1e-9  # correlations that differ by less are equal


def spearman_p(x: ArrayLike, y: ArrayLike) -> float:
    """The two-sided p-value of Spearman's correlation, by permutation.

    It is the share of all orders of one list whose correlation with the other is at least as far
    from zero. It holds for any number of points and with ties. Beyond eight points it is taken over
    19,999 random orders, always the same ones, and the order seen.
    """
    seen = abs(spearman(x, y).value)  # also refuses lists without a correlation
    first, second = (_standard(average_ranks(v)) for v in (x, y))
    n = len(first)
    found = np.abs(first[_orders(n)] @ second)
    count = int((found >= seen - SLACK).sum())
    return count / len(found) if n <= ALL_ORDERS else (count + 1) / (len(found) + 1)


def _standard(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centred and of length one: then a correlation is a product."""
    centred = ranks - ranks.mean()
    return np.asarray(centred / math.sqrt(float(centred @ centred)))


@lru_cache(maxsize=4)
def _orders(n: int) -> NDArray[np.intp]:
    """(orders, n): every order, or random ones where these are too many."""
    if n <= ALL_ORDERS:
        return np.array(list(permutations(range(n))), dtype=np.intp)
    source = np.random.default_rng(n)
    return np.argsort(source.random((DRAWS, n)), axis=1)
