"""The interval of a share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Z95 = 1.959963984540054


class Interval(NamedTuple):
    low: float
    high: float


def wilson(successes: float, n: int, z: float = Z95) -> Interval:
    """The Wilson score interval of a share: right also near 0, near 1 and for few images."""
    if n <= 0:
        return Interval(0.0, 1.0)
    share = successes / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if successes == 0 else max(0.0, (centre - half) / scale)
    high = 1.0 if successes == n else min(1.0, (centre + half) / scale)
    return Interval(low, high)


def mean_interval(values: NDArray[np.float64], z: float = Z95) -> Interval:
    """The interval of the mean of shares between 0 and 1, by their own spread."""
    n = len(values)
    if n < 2:
        return Interval(0.0, 1.0)
    mean, half = float(values.mean()), z * float(values.std(ddof=1)) / math.sqrt(n)
    return Interval(max(0.0, mean - half), min(1.0, mean + half))
