"""Projections, starts and directions of the norm balls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from buttress.errors import UserError
from buttress.system.rng import SampleRNG
from buttress.threats import projections
from buttress.threats.core import Threat
from buttress.threats.norm_ball import NORMS, Norm, NormBall, format_eps, parse_eps, parse_norm

RADII: dict[Norm, float] = {"Linf": 8 / 255, "L2": 0.5, "L1": 12.0}


def case(seed: int, n: int, spread: float) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(1, n, generator=source, dtype=torch.float64)
    if seed % 3 == 0:
        x[0, 0] = float(seed % 2)  # a pixel on the border of the box
    return x, x + spread * torch.randn(1, n, generator=source, dtype=torch.float64)


def nearest(norm: Norm, eps: float, x: np.ndarray, v: np.ndarray) -> float:
    """The least squared distance to ball ∩ box, by a solver that knows nothing of ours."""
    n = len(x)
    if norm == "Linf":
        return float(((np.clip(v, np.maximum(x - eps, 0), np.minimum(x + eps, 1)) - v) ** 2).sum())
    if norm == "L2":
        ball = {"type": "ineq", "fun": lambda p: eps**2 - ((p - x) ** 2).sum()}
        found = minimize(lambda p: ((p - v) ** 2).sum(), x, bounds=[(0, 1)] * n, constraints=[ball],
                         options={"ftol": 1e-14, "maxiter": 500})  # fmt: skip
        return float(found.fun)

    def point(p: np.ndarray) -> np.ndarray:  # up and down moves as separate variables
        return x + p[:n] - p[n:]

    rules = [
        {"type": "ineq", "fun": lambda p: eps - p.sum()},
        {"type": "ineq", "fun": point},
        {"type": "ineq", "fun": lambda p: 1 - point(p)},
    ]
    found = minimize(
        lambda p: ((point(p) - v) ** 2).sum(),
        np.zeros(2 * n),
        bounds=[(0, 1)] * 2 * n,
        constraints=rules,
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return float(found.fun)


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 6), eps=st.sampled_from([0.03, 0.3, 0.9]),
       spread=st.sampled_from([0.05, 0.5, 3.0]))  # fmt: skip
def test_projection_is_the_nearest_point(
    norm: Norm, seed: int, n: int, eps: float, spread: float
) -> None:
    x, v = case(seed, n, spread)
    threat = NormBall(norm, eps)
    z = threat.project(x, v)
    ours = float(((z - v) ** 2).sum())
    assert ours <= nearest(norm, eps, x[0].numpy(), v[0].numpy()) + 1e-7
    assert float(threat.perturbation_size(x, z)) <= eps + 1e-9
    assert 0 <= float(z.min()) <= float(z.max()) <= 1


@pytest.mark.parametrize("norm", NORMS)
def test_projection_is_idempotent_and_leaves_inner_points(norm: Norm) -> None:
    threat = NormBall(norm, RADII[norm])
    x = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    far = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    once = threat.project(x, far)
    torch.testing.assert_close(threat.project(x, once), once, rtol=0, atol=1e-12)
    inner = threat.scaled(0.5).project(x, far)
    torch.testing.assert_close(threat.project(x, inner), inner, rtol=0, atol=1e-15)


@pytest.mark.parametrize("norm", NORMS)
def test_projection_keeps_float32_in_ball_and_box(norm: Norm) -> None:
    threat = NormBall(norm, RADII[norm])
    x = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    far = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    z = threat.project(x, far)
    assert not threat.excess(x, z).any()
    assert 0 <= float(z.min()) <= float(z.max()) <= 1
    # The L1 projection is not a rescale: coordinates that move little do not move at all.
    if norm == "L1":
        assert float((z == x).float().mean()) > 0.9


@pytest.mark.parametrize("norm", NORMS)
def test_projection_of_a_huge_or_zero_step(norm: Norm) -> None:
    threat = NormBall(norm, RADII[norm])
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(threat.project(x, x), x)
    for size in (1e-8, 1e6):
        z = threat.project(x, x + size)
        assert z.isfinite().all()
        assert not threat.excess(x, z).any()
    assert torch.equal(NormBall(norm, 0.0).project(x, x + 1), x)


@pytest.mark.parametrize("norm", NORMS)
def test_random_starts_are_centred_and_inside(norm: Norm) -> None:
    eps = {"Linf": 0.1, "L2": 0.5, "L1": 2.0}[norm]
    threat = NormBall(norm, eps)
    x = torch.full((4000, 1, 2, 2), 0.5, dtype=torch.float64)
    start = threat.random_start(x, SampleRNG(0, "test", torch.arange(4000)))
    assert not threat.excess(x, start).any()
    moved = (start - x).flatten(1)
    spread = moved.std(0)
    assert (moved.mean(0).abs() < 4 * spread / 4000**0.5).all()
    assert (spread > 0.1 * eps).all()
    # In d dimensions a uniform draw from the ball has half its mass beyond radius eps / 2^(1/d).
    beyond = float((threat.perturbation_size(x, start) > eps * 0.5**0.25).double().mean())
    assert beyond == pytest.approx(0.5, abs=0.05) or norm == "L1"  # L1 starts meet the box here


@pytest.mark.parametrize("norm", NORMS)
def test_random_starts_belong_to_samples_not_batches(norm: Norm) -> None:
    threat = NormBall(norm, RADII[norm])
    x = torch.rand(9, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(100, 109)
    whole = threat.random_start(x, SampleRNG(0, "test", ids))
    rows = torch.tensor([7, 2, 5])
    assert torch.equal(threat.random_start(x[rows], SampleRNG(0, "test", ids[rows])), whole[rows])
    other = threat.random_start(x, SampleRNG(0, "test", ids), restart=1)
    assert not torch.equal(other, whole)


@pytest.mark.parametrize("norm", NORMS)
def test_steepest_direction_reaches_the_dual_norm(norm: Norm) -> None:
    threat = NormBall(norm, 1.0)
    grad = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = threat.steepest_direction(grad)
    torch.testing.assert_close(
        threat.perturbation_size(torch.zeros_like(step), step), torch.ones(6).double()
    )
    rise = (step * grad).flatten(1).sum(1)
    torch.testing.assert_close(rise, threat.dual_norm(grad))


def test_l1_ascent_skips_what_the_box_blocks() -> None:
    x = torch.tensor([[[[1.0, 0.5, 0.0, 0.5]]]])
    grad = torch.tensor([[[[9.0, 1.0, -8.0, -2.0]]]])
    step = NormBall("L1", 1.0).step_direction(x, grad, density=0.25)
    assert torch.equal(step, torch.tensor([[[[0.0, 0.0, 0.0, -1.0]]]]))


@pytest.mark.parametrize("norm", NORMS)
def test_zero_gradients_give_finite_directions(norm: Norm) -> None:
    zero = torch.zeros(2, 3, 4, 4)
    assert torch.equal(NormBall(norm, 0.5).step_direction(zero + 0.5, zero), zero)


@pytest.mark.parametrize("text", ["Linf", "linf", "inf", "l_inf", "L-inf", "L∞", "Linfinity"])
def test_norms_are_read_in_every_usual_spelling(text: str) -> None:
    assert parse_norm(text) == "Linf"


@pytest.mark.parametrize("eps", [8 / 255, 2.25 / 255, 0.5, 12.0, 0.031, 1 / 3, 0.0, 1e-9])
def test_eps_survives_being_printed(eps: float) -> None:
    assert parse_eps(format_eps(eps)) == pytest.approx(eps, rel=1e-11)
    assert str(NormBall("Linf", 8 / 255)) == "Linf:8/255"


@pytest.mark.parametrize(
    ("text", "word"),
    [("Linf:8", "8/255"), ("Linf", "KIND:BUDGET"), ("L3:1", "one of .*Linf"), ("L2:-1", "eps >= 0"),
     ("L2:x", "8/255"), ("L2:nan", "eps >= 0"), ("L2:1/0", "8/255"), ("L2:inf", "finite")],
)  # fmt: skip
def test_mistakes_say_what_to_do(text: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        Threat.parse(text)


def test_a_threat_model_is_parsed_not_constructed() -> None:
    for args in (("Linf:8/255",), ()):
        with pytest.raises(UserError, match=r"bt\.Threat\.parse\('Linf:8/255'\)"):
            Threat(*args)  # type: ignore[abstract]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fraction", [0.0, 0.02, 0.2])
def test_the_l1_projection_of_few_moves_has_the_bits_of_the_dense_one(
    fraction: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = torch.Generator().manual_seed(3)
    x = torch.rand(9, 3, 16, 16, generator=source, dtype=dtype)
    has_moved = torch.rand(x.shape, generator=source) < fraction
    has_moved[0] = False  # an image that stays where it is
    x_adv = x + has_moved * torch.randn(x.shape, generator=source, dtype=dtype)
    x_adv[1, 0, 0, 0] = torch.nan
    threat, points = NormBall("L1", 2.0), []
    layouts = (torch.contiguous_format, torch.channels_last)
    for max_fraction in (-1.0, 1.0):  # dense, and sparse
        monkeypatch.setattr(projections, "MAX_SPARSE_FRACTION", max_fraction)
        points += [
            threat.project(*(t[rows].contiguous(memory_format=layout) for t in (x, x_adv)))
            for rows in (slice(None), slice(2, None), slice(0, 1))
            for layout in layouts
        ]
    for dense, sparse in zip(points[:6], points[6:], strict=True):
        assert torch.equal(dense.nan_to_num(9), sparse.nan_to_num(9))
