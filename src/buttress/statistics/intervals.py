"""Intervals of accuracies and means."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from buttress.errors import UserError

Z95 = 1.959963984540054


class Interval(NamedTuple):
    low: float
    high: float


def wilson_interval(successes: float, n: float, z: float = Z95) -> Interval:
    """Wilson score interval of a proportion, valid also near 0 and 1 and for few images."""
    if n <= 0:
        return Interval(0.0, 1.0)
    fraction = successes / n
    center = fraction + z * z / (2 * n)
    half = z * math.sqrt(fraction * (1 - fraction) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if successes == 0 else max(0.0, (center - half) / scale)
    high = 1.0 if successes == n else min(1.0, (center + half) / scale)
    return Interval(low, high)


def mean_interval(
    values: NDArray[np.float64], z: float = Z95, effective_fraction: float = 1.0
) -> Interval:
    """The interval of the mean of shares between 0 and 1, such as those of the copies of an image.

    Wilson's, for as many images as would spread as much if each were right or wrong. One image that
    is right and one that is wrong are added before the spread is taken: nearly equal shares, mostly
    near 0 or 1, would otherwise seem to have none. For copies of images, see
    `effective_image_fraction`.
    """
    n = len(values)
    if n < 1:
        return Interval(0.0, 1.0)
    center = (float(values.sum()) + 1) / (n + 2)
    squares = float(((values - center) ** 2).sum()) + center**2 + (1 - center) ** 2
    variance = squares / (n + 1)
    effective_images = effective_fraction * max(n, n * center * (1 - center) / variance)
    return wilson_interval(float(values.mean()) * effective_images, effective_images, z)


def effective_image_fraction(groups: NDArray[np.int64]) -> float:
    """The effective number of images over n, where images of one group are copies of each other.

    Kish's effective sample size for groups of m_g images that are right or wrong together,
    n^2 / sum m_g^2: 20 images, each five times, are worth 20, not 100.
    """
    _, counts = np.unique(groups, return_counts=True)
    return len(groups) / float((counts.astype(np.float64) ** 2).sum()) if len(groups) else 1.0


RESAMPLES = 10_000
MAX_VALUES_IN_MEMORY = 4_000_000  # resampled values that are in memory together


def bootstrap_mean_interval(
    values: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The 95% percentile interval of the mean of ``values`` over the images.

    The same seed gives the same interval. With fewer than about 30 values, or where nearly all of
    them are equal, it is too narrow.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not sample.size or resamples < 1:
        raise UserError(
            f"the bootstrap needs a list of values and `draws >= 1`, but got values of shape "
            f"{sample.shape} and draws={resamples}"
        )
    return percentile_interval(resampled_means(sample, resamples, np.random.default_rng(seed)))


def resampled_means(
    values: NDArray[np.float64], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """The mean of each resample, in chunks that bound the memory."""
    n, step = len(values), max(1, MAX_VALUES_IN_MEMORY // len(values))
    pieces = [
        values[rng.integers(n, size=(min(step, resamples - start), n))].mean(axis=1)
        for start in range(0, resamples, step)
    ]
    return np.concatenate(pieces)


def percentile_interval(values: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(values, (0.025, 0.975))
    return Interval(float(low), float(high))
