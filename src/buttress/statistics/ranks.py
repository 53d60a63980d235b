"""Rank statistics: Spearman correlation, AUC and permutation tests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from buttress.errors import UserError
from buttress.statistics.intervals import Z95, Interval, wilson_interval


@dataclass(frozen=True)
class EstimateWithInterval:
    """A number with its 95% interval."""

    value: float
    interval: Interval


def average_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Ranks from 1 on; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[inverse.reshape(-1)]
    return ranks


def spearman(x: ArrayLike, y: ArrayLike, z: float = Z95) -> EstimateWithInterval:
    r"""Spearman's rank correlation, with the interval of Bonett and Wright (2000).

    .. math:: \tanh\Bigl(\operatorname{artanh} r \pm z \sqrt{(1 + r^2 / 2) / (n - 3)}\Bigr)

    A perfect order says little about few points: its interval is that of the nearest order that is
    not perfect. Under four points the interval is everything.
    """
    first, second = average_ranks(x), average_ranks(y)
    if len(first) != len(second) or len(first) < 2:
        raise UserError(
            "a rank correlation needs two lists of the same length >= 2, but got "
            f"{len(first)} and {len(second)}"
        )
    if not all(np.isfinite(np.asarray(v, dtype=np.float64)).all() for v in (x, y)):
        raise UserError("a rank correlation needs finite numbers; remove NaN and infinite values")
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        raise UserError("a rank correlation needs values that differ; one list is constant")
    n, r = len(first), float(np.corrcoef(first, second)[0, 1])
    r = max(-1.0, min(1.0, r))
    if n < 4:
        return EstimateWithInterval(r, Interval(-1.0, 1.0))
    max_correlation = 1 - 12 / (n**3 - n)  # the order with two neighbors swapped
    clipped = max(-max_correlation, min(max_correlation, r))
    half = z * math.sqrt((1 + clipped * clipped / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(clipped) + sign * half) for sign in (-1, 1))
    return EstimateWithInterval(
        r, Interval(-1.0 if r < -max_correlation else low, 1.0 if r > max_correlation else high)
    )


def auc(positives: ArrayLike, negatives: ArrayLike, z: float = Z95) -> EstimateWithInterval:
    """The probability that a random value of ``positives`` is above one of ``negatives``.

    Equal values count half. The interval is DeLong's (1988) on the logit scale; where every pair is
    ordered it is that of a share of as many images as the smaller list has.
    """
    a, b = np.asarray(positives, dtype=np.float64), np.asarray(negatives, dtype=np.float64)
    if a.ndim != 1 or b.ndim != 1 or not a.size or not b.size:
        raise UserError(
            f"auc needs two non-empty 1-d arrays, but got shapes {a.shape} and {b.shape}"
        )
    ranks = average_ranks(np.concatenate([a, b]))
    placements_a = (ranks[: len(a)] - average_ranks(a)) / len(b)  # share of `below` under each
    placements_b = 1 - (ranks[len(a) :] - average_ranks(b)) / len(a)
    value = float(placements_a.mean())
    if len(a) < 2 or len(b) < 2:
        return EstimateWithInterval(value, Interval(0.0, 1.0))
    variance = float(placements_a.var(ddof=1) / len(a) + placements_b.var(ddof=1) / len(b))
    if variance == 0 or not 0 < value < 1:
        smaller_size = min(len(a), len(b))
        return EstimateWithInterval(
            value, wilson_interval(round(value * smaller_size), smaller_size, z)
        )
    center, half = math.log(value / (1 - value)), z * math.sqrt(variance) / (value * (1 - value))
    low, high = (1 / (1 + math.exp(-(center + sign * half))) for sign in (-1, 1))
    return EstimateWithInterval(value, Interval(low, high))


MAX_EXACT_POINTS = 8  # points: up to here every order is tried, 40,320 of them
PERMUTATIONS = 19_999
CORRELATION_TOLERANCE = 1e-9  # correlations that differ by less are equal


def spearman_p_value(x: ArrayLike, y: ArrayLike) -> float:
    """The two-sided p-value of Spearman's correlation, by permutation.

    It is the share of all orders of one list whose correlation with the other is at least as far
    from zero. It holds for any number of points and with ties. Beyond eight points it is taken over
    19,999 random orders, always the same ones, and the order seen.
    """
    observed = abs(spearman(x, y).value)  # also refuses lists without a correlation
    first, second = (_standardize(average_ranks(v)) for v in (x, y))
    n = len(first)
    permuted = np.abs(first[_permutations(n)] @ second)
    count = int((permuted >= observed - CORRELATION_TOLERANCE).sum())
    return count / len(permuted) if n <= MAX_EXACT_POINTS else (count + 1) / (len(permuted) + 1)


def _standardize(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centered and of norm one, so that a correlation is a dot product."""
    centered = ranks - ranks.mean()
    return np.asarray(centered / math.sqrt(float(centered @ centered)))


@lru_cache(maxsize=4)
def _permutations(n: int) -> NDArray[np.intp]:
    """(orders, n): every order, or random ones where these are too many."""
    if n <= MAX_EXACT_POINTS:
        return np.array(list(permutations(range(n))), dtype=np.intp)
    rng = np.random.default_rng(n)
    return np.argsort(rng.random((PERMUTATIONS, n)), axis=1)
