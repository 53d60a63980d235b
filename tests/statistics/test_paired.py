"""Paired differences: closed forms, published values, coverage and power."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest, multinomial

from buttress.errors import UserError
from buttress.statistics import (
    Z95,
    Interval,
    PairedCounts,
    bootstrap_difference_interval,
    bootstrap_mean_interval,
    count_pairs,
    detectable_difference,
    holm,
    mcnemar,
    mcnemar_power,
    mean_interval,
    paired_difference,
    score_interval,
    wilson_interval,
)
from buttress.statistics.paired import critical_losses


def test_images_are_counted_by_who_is_right() -> None:
    result = count_pairs([1, 1, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0])
    assert result == PairedCounts(both=1, only_a=2, only_b=1, neither=2)
    assert result.images == 6
    assert result.difference == 1 / 6


@pytest.mark.parametrize(("a", "b"), [([1, 0], [1]), ([], []), ([[1, 0]], [[1, 0]])])
def test_flags_that_do_not_pair_up_are_refused(a: list[int], b: list[int]) -> None:
    with pytest.raises(UserError, match="the same length"):
        count_pairs(a, b)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (5, 0), (1, 7), (12, 9), (40, 40), (4000, 2000)])
def test_mcnemar_is_the_binomial_test(b: int, c: int) -> None:
    exact = binomtest(b, b + c).pvalue if b + c else 1.0
    assert mcnemar(b, c) == pytest.approx(exact, rel=1e-6, abs=1e-200)
    assert mcnemar(c, b) == mcnemar(b, c)
    assert mcnemar(b, c, mid_p=True) <= mcnemar(b, c)


def test_mcnemar_has_the_published_values() -> None:
    # Airway hyper-responsiveness (Bentur et al. 2009): 1 and 7 discordant pairs of 21, with the
    # values of Fagerland, Lydersen and Laake, Statistics in Medicine 33, 2014.
    assert mcnemar(1, 7) == pytest.approx(0.070, abs=5e-4)
    assert mcnemar(1, 7, mid_p=True) == pytest.approx(0.039, abs=5e-4)
    assert score_interval(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)


def refused(b: int, c: int, n: int, delta: float) -> bool:
    """The score test of a difference, with the most likely q found by search."""
    low, high = max(0.0, -delta), (1 - delta) / 2

    def cost(q: float) -> float:
        parts = ((b, q + delta), (c, q), (n - b - c, 1 - 2 * q - delta))
        return -sum(k * math.log(max(p, 1e-300)) for k, p in parts if k)

    q = minimize_scalar(cost, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
    return abs(b - c - n * delta) > Z95 * math.sqrt(n * (2 * q + delta * (1 - delta)))


@pytest.mark.parametrize(("b", "c", "n"), [(1, 7, 21), (12, 5, 60), (30, 31, 100), (9, 0, 40)])
def test_the_score_interval_is_what_the_test_does_not_refuse(b: int, c: int, n: int) -> None:
    low, high = score_interval(b, c, n)
    for end, inwards in ((low, 1), (high, -1)):
        assert not refused(b, c, n, end + inwards * 1e-4)
        assert refused(b, c, n, end - inwards * 1e-4)


def test_the_score_interval_without_a_split_has_a_closed_form() -> None:
    width = Z95**2 / (50 + Z95**2)
    assert score_interval(0, 0, 50) == pytest.approx((-width, width), abs=1e-12)
    assert bootstrap_difference_interval(0, 0, 50) == (0.0, 0.0)  # why it is not the default


@pytest.mark.parametrize("counts", [*itertools.product((0, 3, 8), (0, 2, 12), (20, 200))])
def test_swapping_the_models_turns_the_sign(counts: tuple[int, int, int]) -> None:
    b, c, n = counts
    low, high = score_interval(b, c, n)
    assert score_interval(c, b, n) == (-high, -low)
    assert -1 <= low <= (b - c) / n <= high <= 1


@cache
def all_intervals(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The interval of all counts that there can be, and these counts."""
    pairs = np.array([(b, c) for b in range(n + 1) for c in range(n + 1 - b)])
    score = np.array([score_interval(int(b), int(c), n) for b, c in pairs])
    return score, np.column_stack([pairs, n - pairs.sum(axis=1)])


@pytest.mark.parametrize("n", [30, 60])
@pytest.mark.parametrize("split", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("lean", [0.0, 0.3, 0.8])
def test_the_score_interval_covers_the_truth(n: int, split: float, lean: float) -> None:
    """Exactly: summed over all counts there can be; ``lean`` is difference / split."""
    score, counts = all_intervals(n)
    delta = split * lean
    shares = [(split + delta) / 2, (split - delta) / 2, 1 - split]
    weight = multinomial.pmf(counts, n, shares)
    inside = (score[:, 0] <= delta) & (delta <= score[:, 1])
    assert 0.93 < float(weight[inside].sum()) < 0.99


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(("p", "n"), [(0.5, 300), (0.9, 300), (0.3, 2000)])
def test_intervals_of_correlated_flags_cover_the_truth(
    correlation: float, p: float, n: int
) -> None:
    """A is 3 points better; B copies the flag of A with a probability."""
    source = np.random.default_rng(7)
    draws, truth = 1000, 0.03 * (1 - correlation)
    a = source.random((draws, n)) < p + 0.03
    b = np.where(source.random((draws, n)) < correlation, a, source.random((draws, n)) < p)
    only_a, only_b = (a & ~b).sum(axis=1), (~a & b).sum(axis=1)
    result = [score_interval(int(x), int(y), n) for x, y in zip(only_a, only_b, strict=True)]
    assert 0.93 < np.mean([i.low <= truth <= i.high for i in result]) < 0.97
    shares = [wilson_interval(int(k), n) for k in a.sum(axis=1)]
    assert 0.93 < np.mean([i.low <= p + 0.03 <= i.high for i in shares]) < 0.97


@pytest.mark.parametrize("n", [20, 100, 1000])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("alike", [0.1, 0.5, 0.9])
def test_the_interval_of_a_mean_of_shares_covers_the_truth(
    n: int, share: float, alike: float
) -> None:
    """Images with 75 copies each; the copies of one image are more or less alike."""
    source = np.random.default_rng(0)
    one, other = share * (1 / alike - 1), (1 - share) * (1 / alike - 1)
    values = source.binomial(75, source.beta(one, other, (600, n))) / 75
    inside = [low <= share <= high for low, high in map(mean_interval, values)]
    assert np.mean(inside) > 0.92


def test_the_interval_of_equal_shares_has_a_width() -> None:
    assert mean_interval(np.ones(20)) == wilson_interval(20, 20)
    assert mean_interval(np.zeros(20)) == wilson_interval(0, 20)
    assert mean_interval(np.zeros(0)) == (0, 1)
    low, high = mean_interval(np.array([0.0, 1.0] * 10))
    assert (low, high) == pytest.approx(wilson_interval(10, 20))


def test_the_bootstrap_agrees_where_models_disagree_often() -> None:
    source = np.random.default_rng(0)
    a, b = source.random(2000) < 0.6, source.random(2000) < 0.55
    score, resampled = (paired_difference(a, b, method=m).interval for m in ("score", "bootstrap"))
    assert resampled == pytest.approx(score, abs=0.002)
    plain = bootstrap_mean_interval(a.astype(float) - b, resamples=4000, seed=1)
    assert plain == pytest.approx(score, abs=0.003)
    assert plain == bootstrap_mean_interval(a.astype(float) - b, resamples=4000, seed=1)
    assert plain != bootstrap_mean_interval(a.astype(float) - b, resamples=4000, seed=2)


def test_the_bootstrap_is_too_narrow_where_models_seldom_disagree() -> None:
    source, n, split = np.random.default_rng(3), 200, 0.01
    counts = source.multinomial(n, [split / 2, split / 2, 1 - split], size=300)
    inside: dict[str, list[bool]] = {"score": [], "bootstrap": []}
    for b, c, _ in counts:
        score, drawn = (
            score_interval(int(b), int(c), n),
            bootstrap_difference_interval(int(b), int(c), n),
        )
        inside["score"].append(score.low <= 0 <= score.high)
        inside["bootstrap"].append(drawn.low < 0 < drawn.high)
    assert np.mean(inside["score"]) >= 0.94
    assert np.mean(inside["bootstrap"]) < 0.9


def test_a_bootstrap_of_many_values_is_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    import buttress.statistics.intervals as module

    values = np.random.default_rng(0).normal(1.0, 2.0, 400)
    monkeypatch.setattr(module, "MAX_VALUES_IN_MEMORY", 4000)
    half = Z95 * values.std(ddof=1) / 20
    expected = Interval(values.mean() - half, values.mean() + half)
    assert bootstrap_mean_interval(values, resamples=3000) == pytest.approx(expected, abs=0.03)
    with pytest.raises(UserError, match="draws"):
        bootstrap_mean_interval(values, resamples=0)


@pytest.mark.parametrize("split", [*range(0, 120, 7), 1000, 20001])
def test_the_lost_images_are_the_most_that_are_still_significant(split: int) -> None:
    result = int(critical_losses(split, split, 0.05)[0])
    assert result == max((k for k in range(split // 2 + 1) if mcnemar(k, split - k) <= 0.05),
                        default=-1)  # fmt: skip


@pytest.mark.parametrize(
    ("n", "split", "delta"), [(200, 0.3, 0.1), (1000, 0.1, 0.0), (50, 0.4, 0.4)]
)
def test_power_is_how_often_the_test_finds_it(n: int, split: float, delta: float) -> None:
    source = np.random.default_rng(1)
    shares = [(split + delta) / 2, (split - delta) / 2, 1 - split]
    counts = source.multinomial(n, shares, size=2000)
    result = np.mean([mcnemar(int(b), int(c)) <= 0.05 for b, c, _ in counts])
    assert mcnemar_power(n, split, delta) == pytest.approx(result, abs=0.03)


def test_the_smallest_difference_is_found_in_80_of_100() -> None:
    for n, split in ((397, 0.15), (5000, 0.2), (100, 0.02)):
        least = detectable_difference(n, split)
        assert mcnemar_power(n, max(split, least), least) == pytest.approx(0.8, abs=0.01)
    assert detectable_difference(5000, 0.2) < detectable_difference(1000, 0.2)
    assert detectable_difference(5, 0.2) == 1.0  # not even five against none is significant
    assert mcnemar_power(100, 0.0, 0.0) == 0.0
    with pytest.raises(UserError, match="disagreement"):
        mcnemar_power(100, 0.1, 0.2)


def test_holm_is_the_worked_example_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([0.3]) == [0.3]
    with pytest.raises(UserError, match="p <= 1"):
        holm([0.1, float("nan")])


def test_holm_errs_in_at_most_five_of_hundred_families() -> None:
    source = np.random.default_rng(5)
    families = source.random((4000, 5))
    families[:, 4] = families[:, 3]  # whatever the dependence
    assert np.mean([min(holm(list(p))) <= 0.05 for p in families]) < 0.06
