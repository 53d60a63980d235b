"""Mean and standard deviation over training seeds, with intervals over seeds and images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from buttress.errors import UserError
from buttress.statistics.intervals import Z95, Interval
from buttress.statistics.paired import mcnemar

LEVEL = 0.05
MIN_P_VALUE = 1e-100  # lower bound of p-values
P_BISECTION_STEPS = 40
SeedMatrix = NDArray[np.float64]  # (seeds, images)


@dataclass(frozen=True)
class SeedSummary:
    """A mean over seeds with its 95% interval."""

    mean: float
    std: float  # between seeds
    seeds: int
    interval: Interval
    standard_error: float  # the standard error of the mean
    p_value: float | None = None  # of a difference: two-sided, that the true one is zero


class VarianceComponent(NamedTuple):
    """One source of variance of a mean, and how many degrees of freedom it was estimated with."""

    variance: float
    degrees_of_freedom: float


class VarianceComponents(NamedTuple):
    """Variance components of a mean: seeds and images."""

    components: tuple[VarianceComponent, ...]
    images_only: VarianceComponent


def summarize_seeds(values: ArrayLike) -> SeedSummary:
    """Mean and standard deviation over seeds, with the t interval of the mean.

    It covers another choice of seeds, judged on the same images.
    """
    array = np.asarray(values, dtype=np.float64)
    check_seed_count(array.ndim == 1 and len(array) >= 2, array.shape)
    sd, n = float(array.std(ddof=1)), len(array)
    term = VarianceComponent(sd * sd / n, n - 1)
    interval_and_error = _interval_and_error(
        float(array.mean()), VarianceComponents((term,), term), (-math.inf, math.inf)
    )
    return SeedSummary(float(array.mean()), sd, n, *interval_and_error)


def summarize_seeds_and_images(flags: ArrayLike) -> SeedSummary:
    """Mean of (seeds, images) flags; its interval accounts for seeds and images."""
    correct = _as_seed_matrix(flags)
    check_seed_count(len(correct) >= 2, correct.shape)
    sd, mean = float(correct.mean(axis=1).std(ddof=1)), float(correct.mean())
    interval_and_error = _interval_and_error(
        mean, crossed_variance_components([correct]), (0.0, 1.0), correct.shape[1]
    )
    return SeedSummary(mean, sd, len(correct), *interval_and_error)


def seed_difference(a: ArrayLike, b: ArrayLike, *, paired: bool = False) -> SeedSummary:
    """Mean accuracy of A minus that of B, from (seeds, images) flags on the same images.

    ``paired`` says that row k of both was trained with the same seed. The interval covers other
    seeds and other images.
    """
    first, second = _as_seed_matrix(a), _as_seed_matrix(b)
    check_seed_count(min(len(first), len(second)) >= 2, (len(first), len(second)))
    if first.shape[1] != second.shape[1] or (paired and len(first) != len(second)):
        raise UserError(
            "results must be (seeds, images) arrays over the same images, but got shapes "
            f"{first.shape} and {second.shape}"
        )
    matrices = [first - second] if paired else [first, -second]
    # Counted in whole images, so that swapping A and B is exact.
    accuracies = [int(m.sum()) / m.size for m in (first, second)]
    sd = math.sqrt(sum(float(p.mean(axis=1).var(ddof=1)) for p in matrices))
    mean, seeds = accuracies[0] - accuracies[1], min(len(first), len(second))
    sources, images = crossed_variance_components(matrices), first.shape[1]
    interval, error = _interval_and_error(mean, sources, (-1.0, 1.0), images)
    p = _bisect_p_value(abs(mean), sources) if error > 0 else mcnemar(images if mean else 0, 0)
    return SeedSummary(mean, sd, seeds, interval, error, p)


def crossed_variance_components(parts: Sequence[SeedMatrix]) -> VarianceComponents:
    """Variance components of the sum of means of (seeds, images) matrices.

    The matrices share their images, not their seeds. Every seed is judged on the same images, so
    seeds and images vary crosswise and are separated as in a two-way analysis of variance. What is
    left over is in the variance between seeds and in that between images: it is taken off the
    latter, so that the few seeds are never trusted to be more alike than they were.
    """
    images = parts[0].shape[1]
    by_image = np.sum([p.mean(axis=0) for p in parts], axis=0)
    of_images = float(by_image.var(ddof=1)) / images if images > 1 else 0.0
    terms, residual_variance = [], 0.0
    for part in parts:
        seeds, by_seed = len(part), part.mean(axis=1, keepdims=True)
        residual = part - by_seed - part.mean(axis=0) + part.mean()
        residual_variance += (
            float((residual**2).sum()) / ((seeds - 1) * max(images - 1, 1)) / (seeds * images)
        )
        terms.append(VarianceComponent(float(by_seed.var(ddof=1)) / seeds, seeds - 1))
    freedom = max(images - 1, 1)
    image = VarianceComponent(max(of_images - residual_variance, 0.0), freedom)
    return VarianceComponents(
        (pool_components(terms), image), VarianceComponent(of_images, freedom)
    )


def pool_components(terms: Sequence[VarianceComponent]) -> VarianceComponent:
    """Independent sources of the same kind as one (Welch 1938)."""
    total = sum(t.variance for t in terms)
    denominator = sum(t.variance**2 / t.degrees_of_freedom for t in terms)
    return VarianceComponent(
        total, total**2 / denominator if denominator > 0 else terms[0].degrees_of_freedom
    )


def half_width(sources: VarianceComponents, level: float) -> float:
    r"""Half the width of the interval that misses the truth with probability ``level``.

    .. math:: \sqrt{\textstyle\sum_k t_{f_k}^2 v_k}

    Each source keeps its own t quantile, so that the interval covers the truth in 95 of 100 cases
    or more for any number of seeds; one quantile for all, by Satterthwaite's degrees of freedom,
    covers less with two or three, and a bootstrap over so few seeds less still. Seeds that happen
    to agree do not make it narrower than images alone would.
    """
    from scipy.special import stdtrit

    def square(term: VarianceComponent) -> float:
        return float(stdtrit(term.degrees_of_freedom, level / 2)) ** 2 * term.variance

    return math.sqrt(max(sum(map(square, sources.components)), square(sources.images_only)))


def _interval_and_error(
    mean: float, sources: VarianceComponents, bounds: tuple[float, float], images: int = 0
) -> tuple[Interval, float]:
    total = sum(t.variance for t in sources.components)
    error, half = math.sqrt(max(total, sources.images_only.variance)), half_width(sources, LEVEL)
    if error == 0 and images:  # nothing varies: what so many equal images leave open
        half = Z95**2 / (images + Z95**2)
    return Interval(max(mean - half, bounds[0]), min(mean + half, bounds[1])), error


def _bisect_p_value(size: float, sources: VarianceComponents) -> float:
    """The level at which the interval just reaches zero."""
    if size == 0:
        return 1.0
    low, high = math.log(MIN_P_VALUE), 0.0
    for _ in range(P_BISECTION_STEPS):
        middle = (low + high) / 2
        reaches = half_width(sources, math.exp(middle)) >= size
        low, high = (middle, high) if reaches else (low, middle)
    return math.exp(high)


def check_seed_count(is_valid: bool, shape: object) -> None:
    if not is_valid:
        raise UserError(
            f"at least two seeds are needed, but got values of shape {shape}; train with more seeds"
        )


def _as_seed_matrix(flags: ArrayLike) -> SeedMatrix:
    matrix = np.asarray(flags, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size:
        raise UserError(f"results must be (seeds, images), but got shape {matrix.shape}")
    return matrix
