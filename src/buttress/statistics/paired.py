"""Paired comparison of two models on the same images (McNemar)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from buttress.errors import UserError
from buttress.statistics.intervals import RESAMPLES, Z95, Interval, percentile_interval

BISECTION_STEPS = 60  # of an interval of length 2: far below the precision of a double


class PairedCounts(NamedTuple):
    """Number of images that both, one or neither of two models classify correctly."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def images(self) -> int:
        return sum(self)

    @property
    def difference(self) -> float:
        """Accuracy of A minus accuracy of B."""
        return (self.only_a - self.only_b) / self.images


@dataclass(frozen=True)
class PairedDifference:
    """Accuracy of A minus accuracy of B, with its 95% interval and McNemar's p-value."""

    counts: PairedCounts
    value: float
    interval: Interval
    p_value: float


def count_pairs(a: ArrayLike, b: ArrayLike) -> PairedCounts:
    """Count images by which model is correct; ``a`` and ``b`` have one flag per image."""
    first, second = np.asarray(a), np.asarray(b)
    if first.shape != second.shape or first.ndim != 1 or not first.size:
        raise UserError(
            "paired results must be two 1-d arrays of the same length, but got shapes "
            f"{first.shape} and {second.shape}"
        )
    first, second = first.astype(bool), second.astype(bool)
    both, only_a = int((first & second).sum()), int((first & ~second).sum())
    only_b = int((~first & second).sum())
    return PairedCounts(both, only_a, only_b, len(first) - both - only_a - only_b)


def paired_difference(
    a: ArrayLike, b: ArrayLike, *, method: Literal["score", "bootstrap"] = "score", seed: int = 0
) -> PairedDifference:
    """Accuracy of A minus accuracy of B on the same images.

    ``score`` is the default because it covers the truth 95 times in 100 also where the models
    seldom disagree; the bootstrap is too narrow there, and has no width at all where they never do.
    """
    split = count_pairs(a, b)
    counts = (split.only_a, split.only_b, split.images)
    interval = (
        score_interval(*counts)
        if method == "score"
        else bootstrap_difference_interval(*counts, seed)
    )
    return PairedDifference(split, split.difference, interval, mcnemar(split.only_a, split.only_b))


def mcnemar(only_a: int, only_b: int, *, mid_p: bool = False) -> float:
    r"""Two-sided exact p-value that neither of two models is better (McNemar 1947).

    .. math:: p = \min\bigl(1, 2 P[X \le \min(b, c)]\bigr), \quad X \sim \mathrm{Bin}(b + c, 1/2)

    with :math:`b` = ``only_a`` and :math:`c` = ``only_b``. The exact test errs in at most 5 of 100
    null cases, often in fewer; ``mid_p`` counts the observed split half, which comes closer to 5.
    """
    from scipy.special import bdtr

    n, fewer = only_a + only_b, min(only_a, only_b)
    if fewer < 0:
        raise UserError(f"counts of images must not be negative, but got {only_a} and {only_b}")
    if n == 0:
        return 1.0
    tail = float(bdtr(fewer, n, 0.5))
    if mid_p:
        tail -= (tail - float(bdtr(fewer - 1, n, 0.5)) if fewer else tail) / 2
    return min(1.0, 2 * tail)


def score_interval(only_a: int, only_b: int, images: int, z: float = Z95) -> Interval:
    r"""The score interval of a paired difference (Tango, Statistics in Medicine 17, 1998).

    All :math:`\delta` that the score test does not refuse:

    .. math:: \frac{|b - c - n\delta|}{\sqrt{n(2 q_\delta + \delta(1 - \delta))}} \le z

    where :math:`q_\delta` is the most likely share of ``only_b`` images (:math:`c`) if the true
    difference is :math:`\delta`.
    """
    if images < max(1, only_a + only_b) or min(only_a, only_b) < 0:
        raise UserError(
            f"`0 <= only_a + only_b <= images` must hold, but got {only_a}, {only_b} and {images}"
        )
    # The upper end is the lower end seen from the other model: so swapping is exact.
    low = _lower_bound(only_a, only_b, images, z)
    return Interval(low, -_lower_bound(only_b, only_a, images, z))


def _lower_bound(b: int, c: int, n: int, z: float) -> float:
    """Lower end of the score interval."""
    low, high = -1.0, (b - c) / n
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        if _score_statistic(b, c, n, middle) > z:
            low = middle
        else:
            high = middle
    return high


def _score_statistic(b: int, c: int, n: int, delta: float) -> float:
    linear = -b - c + (2 * n - b + c) * delta
    constant = -c * delta * (1 - delta)
    root = math.sqrt(max(linear * linear - 8 * n * constant, 0.0))
    q = (root - linear) / (4 * n)
    variance = n * (2 * q + delta * (1 - delta))
    gap = b - c - n * delta
    return gap / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, gap)


def bootstrap_difference_interval(
    only_a: int, only_b: int, images: int, seed: int = 0, draws: int = RESAMPLES
) -> Interval:
    """The 95% bootstrap interval of a paired difference over images.

    Drawing images again changes only how many of each kind there are, so the counts are drawn.
    """
    shares = np.array([only_a, only_b, images - only_a - only_b]) / images
    counts = np.random.default_rng(seed).multinomial(images, shares, size=draws)
    return percentile_interval((counts[:, 0] - counts[:, 1]) / images)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-corrected p-values (Holm 1979, step-down), in the order given.

    Calling those below 0.05 real makes a mistake in at most 5 of 100 families of tests, however the
    tests depend on each other.
    """
    if invalid := [p for p in p_values if not 0 <= p <= 1]:
        raise UserError(f"`0 <= p <= 1` must hold for every p-value, but got {invalid[0]}")
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    corrected, running_max = [0.0] * len(order), 0.0
    for rank, index in enumerate(order):
        running_max = max(running_max, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = running_max
    return corrected


SIGNIFICANCE_LEVEL, TARGET_POWER = 0.05, 0.8
TAIL_STDS = 6.0  # standard deviations of the number of disagreements that are summed over
PRECISION = 0.005  # of the smallest difference, relative


def mcnemar_power(
    images: int, disagreement: float, difference: float, level: float = SIGNIFICANCE_LEVEL
) -> float:
    """Power of the exact test to detect a true difference between two models.

    Args:
        images: how many both were judged on.
        disagreement: the share of images that exactly one of them gets right.
        difference: of their accuracies; at most the disagreement.
        level: p-values up to this one count as found.
    """
    from scipy.special import bdtr, gammaln, xlog1py, xlogy

    if images < 1 or not 0 <= abs(difference) <= disagreement <= 1:
        raise UserError(
            "`images >= 1` and `|difference| <= disagreement <= 1` must hold, but got "
            f"{images}, {difference} and {disagreement}"
        )
    center = images * disagreement
    half_range = TAIL_STDS * np.sqrt(center * (1 - disagreement)) + 1
    least, largest = max(0, int(center - half_range)), min(images, int(center + half_range))
    split, most = np.arange(least, largest + 1), critical_losses(least, largest, level)
    share = (disagreement + difference) / (2 * disagreement) if disagreement else 0.5
    tails = [bdtr(np.maximum(most, 0), split, p) for p in (share, 1 - share)]
    detection_probability = np.where(most >= 0, np.minimum(tails[0] + tails[1], 1.0), 0.0)
    log_binomial = gammaln(images + 1) - gammaln(split + 1) - gammaln(images - split + 1)
    weight = np.exp(
        log_binomial + xlogy(split, disagreement) + xlog1py(images - split, -disagreement)
    )
    return float(np.sum(weight * detection_probability))


@lru_cache(maxsize=32)
def critical_losses(least: int, largest: int, level: float) -> NDArray[np.int64]:
    """How many of ``least`` to ``largest`` images that split two models the better one may lose.

    Then the test still finds it; -1 where it must not lose any and even that is not enough.
    """
    from scipy.special import bdtr, ndtri

    discordant = np.arange(least, largest + 1)

    def is_not_significant(lost: NDArray[np.int64]) -> NDArray[np.bool_]:
        tail = bdtr(np.clip(lost, 0, None), discordant, 0.5)
        outside: NDArray[np.bool_] = (lost >= 0) & (tail > level / 2)
        return outside

    # The normal limit is off by less than two images; four are searched to each side.
    center = np.floor((discordant + ndtri(level / 2) * np.sqrt(discordant)) / 2).astype(np.int64)
    low, high = np.maximum(center - 4, -1), np.maximum(np.minimum(center + 4, discordant // 2), -1)
    while (low < high).any():
        middle = (low + high + 1) // 2
        bad = is_not_significant(middle)
        low, high = np.where(bad, low, middle), np.where(bad, middle - 1, high)
    return low


def detectable_difference(images: int, disagreement: float, power: float = TARGET_POWER) -> float:
    """Smallest true difference that the exact test detects with this power.

    1.0 where so few images cannot show any.
    """

    def is_detectable(difference: float) -> bool:
        return mcnemar_power(images, max(disagreement, difference), difference) >= power

    guess = 2.8 * np.sqrt(max(disagreement, 8 / images) / images)  # of the normal test
    low, high = 0.0, 1.0
    for candidate in (0.85 * guess, 1.15 * guess, 1.5 * guess):
        if candidate < high and is_detectable(candidate):
            high = candidate
            break
        low = max(low, min(candidate, high))
    if high == 1.0 and not is_detectable(1.0):
        return 1.0
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_detectable(middle) else (middle, high)
    return float(high)
