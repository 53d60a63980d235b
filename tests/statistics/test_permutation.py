"""The permutation test of a rank correlation: exact for few points, honest for many."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from buttress.errors import UserError
from buttress.statistics import holm, spearman, spearman_p_value


def test_a_perfect_order_is_as_rare_as_its_number_of_orders() -> None:
    for n in (3, 4, 5, 6):
        assert spearman_p_value(range(n), range(n)) == pytest.approx(2 / math.factorial(n))
        assert spearman_p_value(range(n), range(0, -n, -1)) == pytest.approx(2 / math.factorial(n))


def test_few_points_agree_with_counting_by_hand_also_with_ties() -> None:
    x, y = [1.0, 2.0, 2.0, 5.0, 4.0], [3.0, 1.0, 4.0, 4.0, 9.0]
    seen = abs(spearman(x, y).value)
    every = [abs(spearman([x[i] for i in order], y).value) for order in permutations(range(5))]
    assert spearman_p_value(x, y) == sum(v >= seen - 1e-9 for v in every) / len(every)


def test_many_points_agree_with_the_t_approximation() -> None:
    source = np.random.default_rng(0)
    x = source.normal(size=40)
    y = 0.4 * x + source.normal(size=40)
    assert spearman_p_value(x, y) == pytest.approx(stats.spearmanr(x, y).pvalue, abs=0.005)
    assert spearman_p_value(x, x) == 1 / 20_000
    assert spearman_p_value(x, y) == spearman_p_value(x, y)


def test_families_without_relations_are_found_guilty_at_most_as_often_as_said() -> None:
    source = np.random.default_rng(1)
    families, guilty = 200, 0
    for _ in range(families):
        robust = source.random(7)
        corrected = holm([spearman_p_value(source.random(7), robust) for _ in range(6)])
        guilty += min(corrected) < 0.05
    assert guilty / families < 0.05 + 3 * math.sqrt(0.05 * 0.95 / families)


def test_lists_without_a_correlation_are_refused() -> None:
    with pytest.raises(UserError, match="constant"):
        spearman_p_value([1, 1, 1, 1], [1, 2, 3, 4])
