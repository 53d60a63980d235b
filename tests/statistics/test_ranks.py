"""Rank correlation and the probability that a random pair is ordered."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import roc_auc_score

from buttress.errors import UserError
from buttress.statistics import auc, spearman
from buttress.statistics.ranks import average_ranks


def test_ranks_and_spearman_agree_with_scipy() -> None:
    source = np.random.default_rng(0)
    x, y = source.integers(0, 6, 40), source.normal(size=40)
    assert np.array_equal(average_ranks(x), rankdata(x))
    assert spearman(x, y).value == pytest.approx(spearmanr(x, y).statistic)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("n", [10, 20])
def test_the_interval_of_spearman_covers_the_truth(rho: float, n: int) -> None:
    source = np.random.default_rng(1)
    truth = 6 / np.pi * np.arcsin(rho / 2)  # of a normal pair with this correlation
    inside = []
    for _ in range(800):
        x = source.normal(size=n)
        y = rho * x + np.sqrt(1 - rho**2) * source.normal(size=n)
        low, high = spearman(x, y).interval
        inside.append(low <= truth <= high)
    assert 0.92 < np.mean(inside) < 0.985


def test_a_perfect_order_of_few_points_is_not_certain() -> None:
    up = spearman(range(6), range(6))
    assert up.value == 1.0
    assert up.interval.high == 1.0
    assert 0.3 < up.interval.low < 0.95
    down = spearman(range(6), range(6, 0, -1))
    assert down.interval == pytest.approx((-1.0, -up.interval.low))
    assert spearman([1, 2, 3], [1, 2, 3]).interval == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("x", "y", "word"),
    [([1, 2], [1], "the same length"), ([1, 1, 1, 1], [1, 2, 3, 4], "constant"),
     ([1, 2, float("nan"), 4], [1, 2, 3, 4], "finite")],
)  # fmt: skip
def test_lists_without_an_order_are_refused(x: list[float], y: list[float], word: str) -> None:
    with pytest.raises(UserError, match=word):
        spearman(x, y)


def test_auc_counts_ordered_pairs() -> None:
    source = np.random.default_rng(2)
    above, below = source.integers(2, 9, 30), source.integers(0, 7, 50)
    pairs = (above[:, None] > below) + 0.5 * (above[:, None] == below)
    result = auc(above, below)
    assert result.value == pytest.approx(pairs.mean())
    labels = np.r_[np.ones(30), np.zeros(50)]
    assert result.value == pytest.approx(roc_auc_score(labels, np.r_[above, below]))
    assert auc(below, above).value == pytest.approx(1 - result.value)
    low, high = result.interval
    assert auc(below, above).interval == pytest.approx((1 - high, 1 - low))


def test_the_interval_of_auc_covers_the_truth() -> None:
    source = np.random.default_rng(3)
    for shift, truth in ((0.0, 0.5), (np.sqrt(2), 0.8413447)):
        inside = []
        for _ in range(500):
            low, high = auc(source.normal(shift, 1, 30), source.normal(0, 1, 40)).interval
            inside.append(low <= truth <= high)
        assert 0.925 < np.mean(inside) < 0.985


def test_perfectly_ordered_pairs_are_not_certain() -> None:
    result = auc([3, 4, 5, 6], [0, 1, 2])
    assert result.value == 1.0
    assert result.interval.high == 1.0
    assert 0.3 < result.interval.low < 0.8
    assert auc([1], [0, 2]).interval == (0.0, 1.0)
    with pytest.raises(UserError, match="two non-empty"):
        auc([], [1])
