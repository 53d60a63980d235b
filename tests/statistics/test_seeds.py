"""Means over seeds: closed forms, coverage by simulation, and false alarms."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm, t, ttest_rel

from buttress.errors import UserError
from buttress.statistics import Z95, seed_difference, summarize_seeds, summarize_seeds_and_images


def drawn(
    source: np.random.Generator, seeds: int, images: int, share: float, between: float
) -> NDArray[np.bool_]:
    """Flags of models with this true accuracy: easy and hard images, good and bad seeds."""
    spread = np.sqrt(1 + between**2 + 4)
    mean = norm.ppf(share) * spread
    by_seed = source.normal(0, between, (seeds, 1))
    return mean + by_seed + image_part(source, images) + source.normal(size=(seeds, images)) > 0


def image_part(source: np.random.Generator, images: int) -> NDArray[np.float64]:
    return source.normal(0, 2, (1, images))


def test_the_t_interval_over_seeds() -> None:
    result = summarize_seeds([0.50, 0.52, 0.57])
    half = t.ppf(0.975, 2) * result.std / np.sqrt(3)
    assert result.mean == pytest.approx(0.53)
    assert result.std == pytest.approx(np.std([0.50, 0.52, 0.57], ddof=1))
    assert result.interval == pytest.approx((0.53 - half, 0.53 + half))
    with pytest.raises(UserError, match="at least two seeds"):
        summarize_seeds([0.5])


def test_the_t_interval_covers_other_seeds() -> None:
    source = np.random.default_rng(0)
    for seeds in (2, 3, 5):
        values = source.normal(0.5, 0.02, (600, seeds))
        result = [summarize_seeds(row).interval for row in values]
        assert 0.92 < np.mean([i.low <= 0.5 <= i.high for i in result]) < 0.98


@pytest.mark.parametrize("between", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("seeds", "share"), [(2, 0.5), (3, 0.3), (5, 0.5), (5, 0.9)])
def test_the_interval_over_seeds_and_images_covers_the_truth(
    seeds: int, share: float, between: float
) -> None:
    """Never less than 95%; with two or three seeds more, as seeds so few are not trusted."""
    source = np.random.default_rng(11)
    result = [
        summarize_seeds_and_images(drawn(source, seeds, 300, share, between)).interval
        for _ in range(400)
    ]
    inside = np.mean([i.low <= share <= i.high for i in result])
    assert inside >= 0.925  # 400 draws of 95% fall below with p = 0.01
    if seeds == 5:
        assert inside <= 0.985
    assert all(0 <= i.low <= i.high <= 1 for i in result)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("between", [0.0, 0.3])
def test_equal_trainings_are_seldom_told_apart(paired: bool, between: float) -> None:
    source = np.random.default_rng(2)
    alarms = []
    for _ in range(300):
        images = image_part(source, 200)
        a, b = (
            source.normal(0, between, (3, 1)) + images + source.normal(size=(3, 200)) > 0
            for _ in range(2)
        )
        result = seed_difference(a, b, paired=paired)
        assert result.p_value is not None
        alarms.append(result.p_value <= 0.05)
        assert alarms[-1] == (not result.interval.low <= 0 <= result.interval.high)
    assert np.mean(alarms) <= 0.085  # 300 draws of 5% stay below with p = 0.99


def test_a_large_difference_between_trainings_is_found() -> None:
    source = np.random.default_rng(4)
    images = image_part(source, 500)
    a, b = (shift + images + source.normal(size=(3, 500)) > 0 for shift in (0.8, 0.0))
    for paired in (True, False):
        result = seed_difference(a, b, paired=paired)
        turned = seed_difference(b, a, paired=paired)
        assert result.p_value is not None
        assert result.p_value < 0.01
        assert result.interval.low > 0
        assert turned.mean == -result.mean
        assert turned.interval == pytest.approx((-result.interval.high, -result.interval.low))
        assert turned.p_value == pytest.approx(result.p_value)


def test_without_easy_and_hard_images_it_is_the_t_test_over_seeds() -> None:
    source = np.random.default_rng(6)
    # Seeds differ much, images not at all: the seeds decide alone.
    a = source.random((4, 20000)) < np.array([[0.2], [0.5], [0.4], [0.9]])
    b = source.random((4, 20000)) < np.array([[0.3], [0.1], [0.2], [0.4]])
    result = seed_difference(a, b, paired=True)
    assert result.p_value == pytest.approx(ttest_rel(a.mean(1), b.mean(1)).pvalue, rel=0.01)


def test_the_same_models_differ_by_nothing() -> None:
    flags = np.random.default_rng(0).random((3, 100)) < 0.5
    result = seed_difference(flags, flags, paired=True)
    assert (result.mean, result.p_value) == (0.0, 1.0)
    width = Z95**2 / (100 + Z95**2)
    assert result.interval == pytest.approx((-width, width))
    assert seed_difference(flags, flags).p_value == 1.0


def test_seeds_that_agree_by_luck_are_not_trusted() -> None:
    a = np.zeros((2, 300), bool)
    a[0, :6] = a[1, 6:12] = True  # both seeds differ from B by exactly two points
    result = seed_difference(a, np.zeros((2, 300), bool), paired=True)
    assert result.mean == pytest.approx(0.02)
    assert result.p_value is not None
    assert result.p_value > 0.0001
    assert result.interval.high - result.interval.low > 0.01


def test_shapes_that_do_not_fit_are_refused() -> None:
    flags = np.ones((2, 4), bool)
    with pytest.raises(UserError, match="two seeds"):
        seed_difference(flags[:1], flags)
    with pytest.raises(UserError, match="over the same images"):
        seed_difference(flags, flags[:, :3])
    with pytest.raises(UserError, match="over the same images"):
        seed_difference(np.ones((3, 4)), flags, paired=True)
    with pytest.raises(UserError, match=r"\(seeds, images\)"):
        summarize_seeds_and_images([1, 0])
