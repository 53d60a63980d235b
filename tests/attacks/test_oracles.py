"""Linear models: the best any attack can do is known in closed form, and each must reach it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import buttress as bt
from buttress.attacks import ATTACKS
from buttress.attacks.core import create_attack
from buttress.engine.run import run_attack
from buttress.threats.norm_ball import Norm, NormBall
from conftest import Linear, norms_of, thinned

WEAK = ATTACKS.names("published_weak")
CASES = [
    (name, norm)
    for name in ATTACKS.names("white_box")
    for norm in norms_of(name)
    if name not in WEAK
]
RADIUS: dict[Norm, float] = {"Linf": 0.1, "L2": 0.3, "L1": 0.4}
RAISES = [(name, norm) for name, norm in CASES if not name.startswith("fab")]


def full(name: str) -> dict[str, Any]:
    known = inspect.signature(ATTACKS.get(name)).parameters
    wanted = {"steps": 100, "restarts": 1} if name == "fab" else {"steps": 100}
    return {k: v for k, v in wanted.items() if k in known}


def grey(n: int) -> Tensor:
    return torch.full((n, 3, 4, 4), 0.5, dtype=torch.float64)  # the box is far on all sides


def binary() -> Linear:
    model = Linear(48, 2).double()
    with torch.no_grad():  # a few large weights, so that the best L1 move is clear
        model.weight.mul_(0.1)
        model.weight[0, 5] = 3.0
        model.bias[0] = 5.0  # never broken, so that no attack has a reason to stop
    return model


def multi() -> Linear:
    """Five classes; class 1 is by far the nearest competitor of class 0."""
    model = Linear(48, 5, seed=2).double()
    with torch.no_grad():
        model.weight.mul_(0.1)
        model.weight[0, 5] = 3.0
        model.bias.add_(torch.tensor([12.0, 6.0, -40.0, -40.0, -40.0], dtype=torch.float64))
    return model


@pytest.mark.parametrize("make", [binary, multi])
@pytest.mark.parametrize(("name", "norm"), RAISES)
def test_reaches_the_largest_margin_of_a_linear_model(
    name: str, norm: Norm, make: Callable[[], Linear]
) -> None:
    """The margin of a linear model rises by at most eps times the dual norm of its gradient."""
    model = make()
    x, y = grey(4), torch.zeros(4, dtype=torch.int64)
    threat = NormBall(norm, RADIUS[norm])
    x_adv = bt.attack(name, model, x, y, threat=threat, **full(name))
    slope = (model.weight[1] - model.weight[0]).detach().view(1, 3, 4, 4)
    best = threat.eps * threat.dual_norm(slope)
    rise = ((x_adv - x) * slope).flatten(1).sum(1)
    assert (rise <= best * (1 + 1e-6)).all()
    assert (rise >= 0.99 * best).all()


@pytest.mark.parametrize("classes", thinned([5, 2], 2))
@pytest.mark.parametrize(("name", "norm"), [*CASES, *(("autoattack", n) for n in RADIUS)])
def test_breaks_exactly_what_can_be_broken(name: str, norm: Norm, classes: int) -> None:
    """At 1.01 times the distance to the nearest boundary it succeeds, at 0.99 times it cannot."""
    model = Linear(48, classes, seed=3).double()
    x = grey(1) + 0.05 * torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.weight.mul_(0.1)
        model.weight[0, 7] += 2.0
        model.bias[2:] -= 30.0
        model.bias[1] += (model(x)[:, 0] - model(x)[:, 1]).min() - 0.3  # near: the box is not
    y = torch.zeros(1, dtype=torch.int64)
    gaps = model(x).gather(1, y[:, None]) - model(x)
    slopes = model.weight[None] - model.weight[y][:, None]
    threat = NormBall(norm, 1.0)
    dual = threat.dual_norm(slopes.flatten(0, 1)).view(1, classes)
    distance = (gaps / dual.clamp_min(1e-12)).masked_fill(gaps == 0, torch.inf).amin(1).detach()
    args = {**full(name), **({"queries": 1} if name == "autoattack" else {})}
    for factor, is_broken in ((0.99, False), (1.01, True)):
        ball = NormBall(norm, float(distance[0]) * factor)
        out = run_attack(create_attack(name, **args), model, x, y, ball)
        assert bool(out.fooled[0]) == is_broken, factor
