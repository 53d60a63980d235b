"""Several training seeds: their mean and spread, and what other seeds and images could give."""

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
SMALLEST = 1e-100  # p-values are not told apart below
HALVINGS = 40
Matrix = NDArray[np.float64]  # (seeds, images)


@dataclass(frozen=True)
class Spread:
    """A mean over seeds with its 95% interval."""

    mean: float
    sd: float  # between seeds
    seeds: int
    interval: Interval
    error: float  # the standard error of the mean
    p: float | None = None  # of a difference: two-sided, that the true one is zero


class Term(NamedTuple):
    """One source of variance of a mean, and how many degrees of freedom it was estimated with."""

    variance: float
    freedom: float


class Sources(NamedTuple):
    """What makes a mean vary, and how much of it images alone explain."""

    terms: tuple[Term, ...]
    least: Term


def over_seeds(values: ArrayLike) -> Spread:
    """Mean and standard deviation over seeds, with the t interval of the mean.

    It covers another choice of seeds, judged on the same images.
    """
    given = np.asarray(values, dtype=np.float64)
    check_seeds(given.ndim == 1 and len(given) >= 2, given.shape)
    sd, n = float(given.std(ddof=1)), len(given)
    term = Term(sd * sd / n, n - 1)
    judged = _judged(float(given.mean()), Sources((term,), term), (-math.inf, math.inf))
    return Spread(float(given.mean()), sd, n, *judged)


def over_seeds_and_images(flags: ArrayLike) -> Spread:
    """Mean of (seeds, images) flags; its interval covers other seeds and other images."""
    given = _matrix(flags)
    check_seeds(len(given) >= 2, given.shape)
    sd, mean = float(given.mean(axis=1).std(ddof=1)), float(given.mean())
    judged = _judged(mean, crossed([given]), (0.0, 1.0), given.shape[1])
    return Spread(mean, sd, len(given), *judged)


def difference_over_seeds(a: ArrayLike, b: ArrayLike, *, paired: bool = False) -> Spread:
    """Mean accuracy of A minus that of B, from (seeds, images) flags on the same images.

    ``paired`` says that row k of both was trained with the same seed. The interval covers other
    seeds and other images.
    """
    first, second = _matrix(a), _matrix(b)
    check_seeds(min(len(first), len(second)) >= 2, (len(first), len(second)))
    if first.shape[1] != second.shape[1] or (paired and len(first) != len(second)):
        raise UserError(f"flags must pair up, but got shapes {first.shape} and {second.shape}")
    parts = [first - second] if paired else [first, -second]
    # Counted in whole images, so that swapping A and B is exact.
    right = [int(m.sum()) / m.size for m in (first, second)]
    sd = math.sqrt(sum(float(p.mean(axis=1).var(ddof=1)) for p in parts))
    mean, seeds = right[0] - right[1], min(len(first), len(second))
    sources, images = crossed(parts), first.shape[1]
    interval, error = _judged(mean, sources, (-1.0, 1.0), images)
    p = _p_value(abs(mean), sources) if error > 0 else mcnemar(images if mean else 0, 0)
    return Spread(mean, sd, seeds, interval, error, p)


def crossed(parts: Sequence[Matrix]) -> Sources:
    """What makes the sum of the means of (seeds, images) matrices vary.

    The matrices share their images, not their seeds. Every seed is judged on the same images, so
    seeds and images vary crosswise and are told apart as in a two-way analysis of variance. What is
    left over is in the variance between seeds and in that between images: it is taken off the
    latter, so that the few seeds are never trusted to be more alike than they were.
    """
    images = parts[0].shape[1]
    by_image = np.sum([p.mean(axis=0) for p in parts], axis=0)
    of_images = float(by_image.var(ddof=1)) / images if images > 1 else 0.0
    terms, left_over = [], 0.0
    for part in parts:
        seeds, by_seed = len(part), part.mean(axis=1, keepdims=True)
        left = part - by_seed - part.mean(axis=0) + part.mean()
        left_over += float((left**2).sum()) / ((seeds - 1) * max(images - 1, 1)) / (seeds * images)
        terms.append(Term(float(by_seed.var(ddof=1)) / seeds, seeds - 1))
    freedom = max(images - 1, 1)
    image = Term(max(of_images - left_over, 0.0), freedom)
    return Sources((together(terms), image), Term(of_images, freedom))


def together(terms: Sequence[Term]) -> Term:
    """Independent sources of the same kind as one (Welch 1938)."""
    total = sum(t.variance for t in terms)
    below = sum(t.variance**2 / t.freedom for t in terms)
    return Term(total, total**2 / below if below > 0 else terms[0].freedom)


def half_width(sources: Sources, level: float) -> float:
    r"""Half the width of the interval that misses the truth with probability ``level``.

    .. math:: \sqrt{\textstyle\sum_k t_{f_k}^2 v_k}

    Each source keeps its own t quantile, so that the interval covers the truth in 95 of 100 cases
    or more for any number of seeds; one quantile for all, by Satterthwaite's degrees of freedom,
    covers less with two or three, and a bootstrap over so few seeds less still. Seeds that happen
    to agree do not make it narrower than images alone would.
    """
    from scipy.special import stdtrit

    def squared(term: Term) -> float:
        return float(stdtrit(term.freedom, level / 2)) ** 2 * term.variance

    return math.sqrt(max(sum(map(squared, sources.terms)), squared(sources.least)))


def _judged(
    mean: float, sources: Sources, bounds: tuple[float, float], images: int = 0
) -> tuple[Interval, float]:
    """The interval and the standard error."""
    total = sum(t.variance for t in sources.terms)
    error, half = math.sqrt(max(total, sources.least.variance)), half_width(sources, LEVEL)
    if error == 0 and images:  # nothing varies: what so many equal images leave open
        half = Z95**2 / (images + Z95**2)
    return Interval(max(mean - half, bounds[0]), min(mean + half, bounds[1])), error


def _p_value(size: float, sources: Sources) -> float:
    """The level at which the interval just reaches zero."""
    if size == 0:
        return 1.0
    low, high = math.log(SMALLEST), 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        reaches = half_width(sources, math.exp(middle)) >= size
        low, high = (middle, high) if reaches else (low, middle)
    return math.exp(high)


def check_seeds(holds: bool, shape: object) -> None:
    if not holds:
        raise UserError(
            f"a spread over seeds needs two seeds at least, but got values of shape {shape}; "
            "train with further seeds"
        )


def _matrix(flags: ArrayLike) -> Matrix:
    given = np.asarray(flags, dtype=np.float64)
    if given.ndim != 2 or not given.size:
        raise UserError(f"flags must be (seeds, images), but got shape {given.shape}")
    return given
