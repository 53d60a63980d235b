"""What a number of images can show: the power of the exact McNemar test."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from buttress.errors import UserError

LEVEL, POWER = 0.05, 0.8
TAILS = 6.0  # standard deviations of the number of disagreements that are summed over
HALVINGS = 12


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
    from scipy.special import bdtr

    split = np.arange(least, largest + 1)

    def refused(lost: NDArray[np.int64]) -> NDArray[np.bool_]:
        tail = bdtr(np.clip(lost, 0, None), split, 0.5)
        outside: NDArray[np.bool_] = (lost >= 0) & (tail > level / 2)
        return outside

    reach = (1.2 * np.sqrt(split)).astype(np.int64) + 4  # level 0.05 is at 0.98 roots from the half
    low, high = np.maximum(split // 2 - reach, -1), split // 2
    low = np.where(refused(low), -1, low)
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

    low, high = 0.0, min(1.0, 8 * np.sqrt(max(disagreement, 1 / images) / images))
    if not found(high):
        low, high = high, 1.0
    if not found(high):
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return float(high)
