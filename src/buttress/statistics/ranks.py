"""Order: whether two quantities rise together, and whether one separates two kinds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from buttress.errors import UserError
from buttress.statistics.intervals import Z95, Interval, wilson


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval."""

    value: float
    interval: Interval


def average_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Ranks from 1 on; equal values share the mean of theirs."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[place.reshape(-1)]
    return ranks


def spearman(x: ArrayLike, y: ArrayLike, z: float = Z95) -> Estimate:
    r"""Spearman's rank correlation, with the interval of Bonett and Wright (2000).

    .. math:: \tanh\Bigl(\operatorname{artanh} r \pm z \sqrt{(1 + r^2 / 2) / (n - 3)}\Bigr)

    A perfect order says little about few points: its interval is that of the nearest order that is
    not perfect. Under four points the interval is everything.
    """
    first, second = average_ranks(x), average_ranks(y)
    if len(first) != len(second) or len(first) < 2:
        raise UserError(
            "a rank correlation needs two lists of one length, two points at least, but got "
            f"{len(first)} and {len(second)}"
        )
    if not all(np.isfinite(np.asarray(v, dtype=np.float64)).all() for v in (x, y)):
        raise UserError("a rank correlation needs finite numbers; leave out points without one")
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        raise UserError("a rank correlation needs values that differ; one list is constant")
    n, r = len(first), float(np.corrcoef(first, second)[0, 1])
    r = max(-1.0, min(1.0, r))
    if n < 4:
        return Estimate(r, Interval(-1.0, 1.0))
    most = 1 - 12 / (n**3 - n)  # the order with two neighbours swapped
    inner = max(-most, min(most, r))
    half = z * math.sqrt((1 + inner * inner / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(inner) + sign * half) for sign in (-1, 1))
    return Estimate(r, Interval(-1.0 if r < -most else low, 1.0 if r > most else high))


def auc(above: ArrayLike, below: ArrayLike, z: float = Z95) -> Estimate:
    """The probability that a random pair is ordered: a value of ``above`` over one of ``below``.

    Equal values count half. The interval is DeLong's (1988) on the logit scale; where every pair is
    ordered it is that of a share of as many images as the smaller list has.
    """
    a, b = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    if a.ndim != 1 or b.ndim != 1 or not a.size or not b.size:
        raise UserError(f"two lists of numbers are needed, but got shapes {a.shape} and {b.shape}")
    ranks = average_ranks(np.concatenate([a, b]))
    of_a = (ranks[: len(a)] - average_ranks(a)) / len(b)  # share of `below` under each
    of_b = 1 - (ranks[len(a) :] - average_ranks(b)) / len(a)
    value = float(of_a.mean())
    if len(a) < 2 or len(b) < 2:
        return Estimate(value, Interval(0.0, 1.0))
    variance = float(of_a.var(ddof=1) / len(a) + of_b.var(ddof=1) / len(b))
    if variance == 0 or not 0 < value < 1:
        fewer = min(len(a), len(b))
        return Estimate(value, wilson(round(value * fewer), fewer, z))
    centre, half = math.log(value / (1 - value)), z * math.sqrt(variance) / (value * (1 - value))
    low, high = (1 / (1 + math.exp(-(centre + sign * half))) for sign in (-1, 1))
    return Estimate(value, Interval(low, high))
