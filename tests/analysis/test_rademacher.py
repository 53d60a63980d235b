"""The complexity of linear classes against brute force, and the limits of the lemma."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from buttress.analysis import ANALYSES
from buttress.analysis.methods.rademacher_complexity import (
    LEMMA_CONSTANT,
    adversarial_supremum,
    dual_exponent,
    lemma_limits,
    rademacher_complexity,
)
from buttress.analysis.rademacher import (
    RademacherResult,
    log_log_slope,
    rademacher,
)
from buttress.errors import UserError
from buttress.system.progress import SilentProgress

NORMS = (1.0, 2.0, math.inf)
EPS, RADIUS = 0.3, 1.5


def all_signs(count: int) -> Tensor:
    return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=count)), dtype=torch.float64)


def weights_in_the_ball(p: float, steps: int = 241) -> Tensor:
    """A fine grid of the plane, cut by the ball, with points on its edge."""
    line = torch.linspace(-RADIUS, RADIUS, steps, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    norms = torch.linalg.vector_norm(grid, ord=p, dim=1, keepdim=True)
    edge = grid / norms.clamp_min(1e-12) * RADIUS
    return torch.cat([grid[norms[:, 0] <= RADIUS], edge])


@pytest.mark.parametrize("p", NORMS)
def test_the_closed_form_is_what_a_search_over_weights_finds(p: float) -> None:
    points = torch.tensor([[0.9, -0.2], [0.1, 0.8], [-0.5, 0.4], [0.05, 0.02]]).double()
    signs = all_signs(4)
    weights = weights_in_the_ball(p)
    # f(x) = <w, x> after the worst change of x, by definition and not by the formula with the norm
    corners = EPS * all_signs(2)
    worst = ((points.unsqueeze(1) + corners) @ weights.T).amin(1)  # (points, weights)
    searched = (signs @ worst).amax(1)
    found = adversarial_supremum(signs @ points, signs.sum(1), eps=EPS, radius=RADIUS, p=p)
    assert (searched <= found + 1e-9).all()
    assert torch.allclose(searched, found, atol=0.02)
    estimate = rademacher_complexity(points, signs, eps=EPS, radius=RADIUS, p=p)
    assert estimate.mean == pytest.approx(float(searched.mean()) / 4, abs=0.005)


@pytest.mark.parametrize("p", [1.0, math.inf])
def test_the_closed_form_is_the_optimum_of_a_linear_programme(p: float) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(8):
        u = torch.randn(5, generator=generator, dtype=torch.float64)
        total = float(torch.rand(1, generator=generator)) * 4  # s > 0: the problem is concave
        cost = -np.concatenate([u.numpy(), -u.numpy()]) + EPS * total  # w = plus - minus
        rows = np.ones((1, 10)) if p == 1 else np.hstack([np.eye(5), np.eye(5)])
        solved = linprog(cost, A_ub=rows, b_ub=np.full(len(rows), RADIUS), bounds=(0, None))
        found = adversarial_supremum(u, torch.tensor(total).double(), eps=EPS, radius=RADIUS, p=p)
        assert float(found) == pytest.approx(-solved.fun, abs=1e-9)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("eps", [0.0, 0.02, 0.5, 5.0])
def test_the_limits_of_the_lemma_hold_exactly(p: float, eps: float) -> None:
    for width in (1, 3, 40):
        points = torch.randn(9, width, generator=torch.Generator().manual_seed(width)).double()
        signs = all_signs(9)
        natural = rademacher_complexity(points, signs, eps=0.0, radius=RADIUS, p=p).mean
        attacked = rademacher_complexity(points, signs, eps=eps, radius=RADIUS, p=p).mean
        allowed = lemma_limits(natural, count=9, width=width, eps=eps, radius=RADIUS, p=p)
        assert allowed.lower <= attacked <= allowed.upper + 1e-12
        # the two steps of the proof of the lower limit
        assert attacked >= natural - 1e-12
        assert attacked >= LEMMA_CONSTANT * allowed.dimension_term - 1e-12


@pytest.fixture(scope="module")
def found() -> RademacherResult:
    return rademacher(SilentProgress(), dimensions=(16, 256, 4096), count=60, draws=100)


def test_only_the_l1_class_does_not_grow_with_dimension(found: RademacherResult) -> None:
    slopes = {c.p: c for c in found.classes}
    assert abs(slopes["1"].adversarial_slope) < 1e-9
    assert slopes["2"].adversarial_slope > 0.1
    assert slopes["inf"].adversarial_slope > 0.8
    assert 0.95 < slopes["inf"].largest_dimensions_slope < 1  # from below: a natural part is left
    assert [round(c.dimension_term_slope, 9) for c in found.classes] == [0.0, 0.5, 1.0]
    assert all(abs(c.natural_slope) < 1e-9 for c in found.classes)
    assert "9 of 9" in found.summary()
    assert "+0.00 for p = 1" in found.summary()


def test_pixels_make_the_natural_class_grow_too() -> None:
    made = rademacher(SilentProgress(), dimensions=(16, 1024), count=40, draws=50, points="pixels")
    assert [round(c.natural_slope, 1) for c in made.classes][1:] == [0.5, 1.0]


def test_draws_belong_to_the_seed_and_not_to_the_global_generator(found: RademacherResult) -> None:
    before = torch.random.get_rng_state()
    again = rademacher(SilentProgress(), dimensions=(16, 256, 4096), count=60, draws=100)
    assert again == found
    assert rademacher(SilentProgress(), dimensions=(16, 256), seed=1, draws=9) != found
    assert torch.equal(torch.random.get_rng_state(), before)


def test_wrong_arguments_are_named() -> None:
    for args, word in (
        ({"dimensions": (4,)}, "dimensions"),
        ({"eps": -1.0}, "eps"),
        ({"draws": 1}, "draws"),
        ({"points": "round"}, "padded, pixels"),
    ):
        with pytest.raises(UserError, match=word):
            ANALYSES.create("rademacher", {"progress": SilentProgress(), **args})


def test_dual_norms_and_slopes() -> None:
    assert (
        dual_exponent(1.0),
        dual_exponent(2.0),
        dual_exponent(math.inf),
        dual_exponent(4.0),
    ) == (math.inf, 2.0, 1.0, 4 / 3)
    assert log_log_slope([1, 10, 100], [2, 20, 200]) == pytest.approx(1.0)
    assert log_log_slope([1, 10], [0.0, 1.0]) == 0.0
