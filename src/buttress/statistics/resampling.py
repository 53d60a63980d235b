"""The bootstrap of a mean: what the number could have been with other images."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from buttress.errors import UserError
from buttress.statistics.intervals import Interval

DRAWS = 10_000
AT_ONCE = 4_000_000  # resampled values that are in memory together


def bootstrap(values: ArrayLike, *, draws: int = DRAWS, seed: int = 0) -> Interval:
    """The 95% percentile interval of the mean of ``values`` over the draw of images.

    The same seed gives the same interval. With fewer than about 30 values, or where nearly all of
    them are equal, it is too narrow.
    """
    given = np.asarray(values, dtype=np.float64)
    if given.ndim != 1 or not given.size or draws < 1:
        raise UserError(
            f"the bootstrap needs a list of values and `draws >= 1`, but got values of shape "
            f"{given.shape} and draws={draws}"
        )
    return percentiles(resampled_means(given, draws, np.random.default_rng(seed)))


def resampled_means(
    values: NDArray[np.float64], draws: int, source: np.random.Generator
) -> NDArray[np.float64]:
    """The mean of each resample, in pieces that bound the memory."""
    n, step = len(values), max(1, AT_ONCE // len(values))
    pieces = [
        values[source.integers(n, size=(min(step, draws - start), n))].mean(axis=1)
        for start in range(0, draws, step)
    ]
    return np.concatenate(pieces)


def percentiles(found: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(found, (0.025, 0.975))
    return Interval(float(low), float(high))
