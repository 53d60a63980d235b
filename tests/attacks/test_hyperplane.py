"""The shortest move to a hyperplane inside the box, against solvers that know nothing of ours."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor

from buttress.attacks.hyperplane import Hyperplane
from buttress.threats.norm_ball import NORMS, Norm, NormBall

SEEDS = range(20)
norms = pytest.mark.parametrize("norm", NORMS)


def nearest_move(norm: Norm, slope: Tensor, point: Tensor, gap: Tensor) -> Tensor:
    """(N, d) the shortest d with <slope, d> = -gap and point + d in the box."""
    plane = Hyperplane(norm, slope)
    return plane.step_lengths(point, gap).mul_(plane.sign).mul_(-gap.sign()[:, None])


class Case(NamedTuple):
    slope: Tensor  # (1, d)
    point: Tensor  # (1, d)
    gap: Tensor  # (1,)


def case(seed: int, share: float | None = None) -> Case:
    """A gap that takes ``share`` of all the box allows; some points at the border, some slopes 0.

    Only coordinates with a slope and with room can help, so that a share above 1 is infeasible.
    """
    source = np.random.default_rng(seed)
    d = 6 + seed % 7
    slope, point = source.normal(size=d), source.uniform(size=d)
    if seed % 3 == 0:
        point[:2] = 0.0, 1.0
    if seed % 4 == 0:
        slope[2:4] = 0.0
    sign = 1 if seed % 2 else -1
    share = float(source.uniform(0.02, 0.98)) if share is None else share
    room = np.where(slope * -sign > 0, 1 - point, point)
    gap = sign * share * (np.abs(slope) * room).sum()
    return Case(*(torch.from_numpy(part) for part in (slope[None], point[None], np.array([gap]))))


def least_length(norm: Norm, here: Case) -> float:
    """The length of the shortest move, by linear programming or by SLSQP."""
    w, p, gap = here.slope[0].numpy(), here.point[0].numpy(), float(here.gap)
    d = len(w)
    eye, one = np.eye(d), np.ones((d, 1))
    if norm == "Linf":  # variables: the move, and the largest of its sizes
        sizes = np.block([[eye, -one], [-eye, -one]])
        found = linprog(
            np.r_[np.zeros(d), 1], sizes, np.zeros(2 * d), np.r_[w, 0][None], [-gap],
            bounds=[*zip(-p, 1 - p, strict=True), (0, None)],
        )  # fmt: skip
    elif norm == "L1":  # variables: the moves up, and the moves down
        bounds = [(0, r) for r in (*(1 - p), *p)]
        found = linprog(np.ones(2 * d), A_eq=np.r_[w, -w][None], b_eq=[-gap], bounds=bounds)
    else:
        rule = {"type": "eq", "fun": lambda m: m @ w + gap, "jac": lambda m: w}
        found = minimize(
            lambda m: m @ m, np.zeros(d), jac=lambda m: 2 * m, constraints=[rule],
            bounds=list(zip(-p, 1 - p, strict=True)), options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
    assert found.success, found.message
    return float(found.fun) ** 0.5 if norm == "L2" else float(found.fun)


def is_in_box(here: Case, move: Tensor) -> bool:
    end = here.point + move
    return bool(((end >= -1e-12) & (end <= 1 + 1e-12)).all())


@norms
@pytest.mark.parametrize("seed", SEEDS)
def test_the_move_is_feasible_and_as_short_as_can_be(norm: Norm, seed: int) -> None:
    here = case(seed)
    move = nearest_move(norm, *here)
    assert is_in_box(here, move)
    reached = (here.slope * move).sum(1)
    torch.testing.assert_close(reached, -here.gap, rtol=1e-4, atol=0)
    length = float(NormBall(norm, 1.0).norm_of(move))
    assert length == pytest.approx(least_length(norm, here), rel=1e-4)


@norms
@pytest.mark.parametrize("seed", SEEDS[:8])
def test_where_the_box_is_too_small_everything_moves_fully(norm: Norm, seed: int) -> None:
    here = case(seed, share=1.5)
    move = nearest_move(norm, *here)
    towards = -here.gap.sign() * here.slope.sign()
    corner = (towards > 0).double()
    full = torch.where(towards == 0, 0.0, corner - here.point)
    torch.testing.assert_close(move, full, rtol=0, atol=1e-12)


@norms
def test_a_point_on_the_hyperplane_stays(norm: Norm) -> None:
    here = case(1, share=0.0)
    assert torch.equal(nearest_move(norm, *here), torch.zeros_like(here.point))


@norms
def test_without_any_slope_nothing_moves(norm: Norm) -> None:
    here = case(1)
    flat = here._replace(slope=torch.zeros_like(here.slope))
    assert torch.equal(nearest_move(norm, *flat), torch.zeros_like(here.point))


@norms
def test_a_point_that_the_box_blocks_on_all_sides_stays(norm: Norm) -> None:
    here = case(1)
    towards = -here.gap.sign() * here.slope.sign()
    corner = here._replace(point=(towards > 0).double())
    assert torch.equal(nearest_move(norm, *corner), torch.zeros_like(here.point))


@norms
def test_rows_do_not_see_each_other(norm: Norm) -> None:
    """Rows leave the iteration at different rounds; what they leave with must not depend on it."""
    rows = [case(seed, share) for seed in (0, 7, 14) for share in (0.0, 0.1, 0.9, 2.0)]
    whole = nearest_move(norm, *(torch.cat(parts) for parts in zip(*rows, strict=True)))
    alone = torch.cat([nearest_move(norm, *row) for row in rows])
    torch.testing.assert_close(whole, alone, rtol=0, atol=1e-12)


def test_in_l1_more_coordinates_than_are_tried_first_may_be_needed() -> None:
    source = torch.Generator().manual_seed(0)
    slope = torch.rand(2, 600, generator=source, dtype=torch.float64) + 0.1
    point = torch.full_like(slope, 0.5)
    most = (slope * 0.5).sum(1)
    gap = torch.stack([-0.01 * most[0], -0.9 * most[1]])  # a few coordinates, nearly all
    move = nearest_move("L1", slope, point, gap)
    torch.testing.assert_close((slope * move).sum(1), -gap)
    moved = (move != 0).sum(1).tolist()
    assert moved[0] < 256 < moved[1]
    for row in range(2):  # none with a larger slope is left behind
        used = move[row] != 0
        assert float(slope[row][used].min()) >= float(slope[row][~used].max())


@norms
def test_inputs_are_left_as_they_were(norm: Norm) -> None:
    here = case(4)
    before = Case(*(part.clone() for part in here))
    nearest_move(norm, *here)
    assert all(torch.equal(a, b) for a, b in zip(here, before, strict=True))
