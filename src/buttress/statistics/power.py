"""What a number of images can show: the power of the exact McNemar test."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from buttress.errors import UserError

LEVEL, POWER = 0.05, 0.8
TAILS = 6.0  # standard deviations of the number of disagreements that are summed over
PRECISION = 0.005  # of the smallest difference, relative


def mcnemar_power(
    images: int, disagreement: float, difference: float, level: float = LEVEL
) -> float:
    """The probability that the exact test finds a true difference between two models.

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
    centre = images * disagreement
    reach = TAILS * np.sqrt(centre * (1 - disagreement)) + 1
    least, largest = max(0, int(centre - reach)), min(images, int(centre + reach))
    split, most = np.arange(least, largest + 1), most_lost(least, largest, level)
    share = (disagreement + difference) / (2 * disagreement) if disagreement else 0.5
    tails = [bdtr(np.maximum(most, 0), split, p) for p in (share, 1 - share)]
    found = np.where(most >= 0, np.minimum(tails[0] + tails[1], 1.0), 0.0)
    ways = gammaln(images + 1) - gammaln(split + 1) - gammaln(images - split + 1)
    weight = np.exp(ways + xlogy(split, disagreement) + xlog1py(images - split, -disagreement))
    return float(np.sum(weight * found))


@lru_cache(maxsize=32)
def most_lost(least: int, largest: int, level: float) -> NDArray[np.int64]:
    """How many of ``least`` to ``largest`` images that split two models the better one may lose.

    Then the test still finds it; -1 where it must not lose any and even that is not enough.
    """
    from scipy.special import bdtr, ndtri

    split = np.arange(least, largest + 1)

    def refused(lost: NDArray[np.int64]) -> NDArray[np.bool_]:
        tail = bdtr(np.clip(lost, 0, None), split, 0.5)
        outside: NDArray[np.bool_] = (lost >= 0) & (tail > level / 2)
        return outside

    # The normal limit is off by less than two images; four are searched to each side.
    centre = np.floor((split + ndtri(level / 2) * np.sqrt(split)) / 2).astype(np.int64)
    low, high = np.maximum(centre - 4, -1), np.maximum(np.minimum(centre + 4, split // 2), -1)
    while (low < high).any():
        middle = (low + high + 1) // 2
        bad = refused(middle)
        low, high = np.where(bad, low, middle), np.where(bad, middle - 1, high)
    return low


def smallest_difference(images: int, disagreement: float, power: float = POWER) -> float:
    """The smallest true difference that the exact test finds with this probability.

    1.0 where so few images cannot show any.
    """

    def found(difference: float) -> bool:
        return mcnemar_power(images, max(disagreement, difference), difference) >= power

    guess = 2.8 * np.sqrt(max(disagreement, 8 / images) / images)  # of the normal test
    low, high = 0.0, 1.0
    for near in (0.85 * guess, 1.15 * guess, 1.5 * guess):
        if near < high and found(near):
            high = near
            break
        low = max(low, min(near, high))
    if high == 1.0 and not found(1.0):
        return 1.0
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return float(high)
