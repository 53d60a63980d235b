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


def wilson(successes: float, n: float, z: float = Z95) -> Interval:
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
    """The interval of the mean of shares between 0 and 1, such as those of the copies of an image.

    Wilson's, for as many images as would spread as much if each were right or wrong. One image that
    is right and one that is wrong are added before the spread is taken: nearly equal shares, mostly
    near 0 or 1, would otherwise seem to have none.
    """
    n = len(values)
    if n < 1:
        return Interval(0.0, 1.0)
    centre = (float(values.sum()) + 1) / (n + 2)
    squares = float(((values - centre) ** 2).sum()) + centre**2 + (1 - centre) ** 2
    spread = squares / (n + 1)
    images = max(n, n * centre * (1 - centre) / spread)
    return wilson(float(values.mean()) * images, images, z)
