"""What published protocols need of attacks: their start, their projection, their last point."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from buttress.attacks.core import create_attack
from buttress.attacks.problem import Problem
from buttress.engine.last_iterate import last_iterate
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import Norm, NormBall
from conftest import images, small_net


def by_hand(
    model: torch.nn.Module, x: Tensor, y: Tensor, threat: NormBall, first: Tensor
) -> Tensor:
    """PGD-5 of step 0.3 eps as a textbook has it: unit steps, radial projection, clip, last."""
    x_t = first
    for _ in range(5):
        x_t = x_t.detach().requires_grad_(True)
        loss = torch.nn.functional.cross_entropy(model(x_t), y, reduction="sum")
        (grad,) = torch.autograd.grad(loss, x_t)
        if threat.norm == "Linf":
            x_t = x_t + 0.3 * threat.eps * grad.sign()
            x_t = (x + (x_t - x).clamp(-threat.eps, threat.eps)).clamp(0, 1)
        else:
            size = grad.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            x_t = x_t + 0.3 * threat.eps * grad / size
            length = (x_t - x).flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            x_t = (x + (x_t - x) * (threat.eps / length).clamp_max(1)).clamp(0, 1)
    return x_t.detach()


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.03), ("L2", 0.6)])
@pytest.mark.parametrize("start", ["random", "unclipped"])
def test_the_last_point_is_that_of_a_textbook_loop(norm: Norm, eps: float, start: str) -> None:
    model, (x, _) = small_net().double(), images(24)
    x = x.double().round(decimals=1)  # many pixels at the border of the box
    y = model(x).argmax(1)
    threat = NormBall(norm, eps)
    streams = SampleRNG(0, "pgd", torch.arange(24))
    draw = threat.random_start if start == "random" else threat.random_point
    right = by_hand(model, x, y, threat, draw(x, streams, torch.zeros(24, dtype=torch.int64)))
    args = {"steps": 5, "rel_step": 0.3, "keep": "last", "projection": "radial", "start": start}
    out = run_attack(create_attack("pgd", **args), model, x, y, threat)
    broken = model(right).argmax(1) != y
    assert 0 < int(broken.sum()) < 24, "the case must have both kinds"
    assert torch.equal(out.fooled, broken)
    torch.testing.assert_close(out.x_adv[broken], right[broken])


class Band(torch.nn.Module):
    """Wrong only where the mean of the image is near 0.54."""

    def forward(self, x: Tensor) -> Tensor:
        near = 0.02 - (x.flatten(1).mean(1) - 0.54).abs()
        return torch.stack([torch.zeros_like(near), 10 * near], 1)


@pytest.mark.parametrize("name", ["pgd", "cw"])
def test_an_early_success_does_not_count_if_only_the_last_point_does(name: str) -> None:
    """Steps of 0.05 go from 0.50 to 0.55, which is a success, and back again."""
    x, y = torch.full((3, 1, 2, 2), 0.5), torch.zeros(3, dtype=torch.int64)
    how = AttackOptions(stop_when_fooled=True)
    found = {}
    for keep, steps in (("best", 2), ("last", 2), ("last", 3)):
        args = {"keep": keep, "steps": steps, "rel_step": 0.5, "start": "clean"}
        attack = create_attack(name, **args)
        out = run_attack(attack, Band(), x, y, NormBall("Linf", 0.1), options=how)
        found[keep, steps] = bool(out.fooled.all())
        assert bool(out.fooled.any()) == found[keep, steps]
    # The hinge of `cw` has no slope where it succeeded, so it stays there.
    assert found == {("best", 2): True, ("last", 2): name == "cw", ("last", 3): True}


def test_guided_attacks_may_be_judged_by_their_last_point() -> None:
    model, (x, _) = small_net(), images(32)
    y, threat = model(x).argmax(1), NormBall("Linf", 0.02)
    best, last = (
        run_attack(create_attack("gama", keep=keep, steps=6), model, x, y, threat)
        for keep in ("best", "last")
    )
    streams = SampleRNG(0, "gama", torch.arange(32))
    problem = Problem(model, x, y, threat, streams, clean_logits=model(x).detach())
    right = last_iterate(create_attack("gama", steps=6), problem)
    assert torch.equal(last.fooled, model(right).argmax(1) != y)
    assert torch.equal(last.x_adv[last.fooled], right[last.fooled])
    assert not (last.fooled & ~best.fooled).any()


class Negative(torch.nn.Module):
    """Wrong only where the pixels add up to less than zero, so only outside the box."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.flatten(1).sum(1)
        return torch.stack([torch.zeros_like(total), -total], 1)


def test_a_start_outside_the_box_never_counts() -> None:
    x, y = torch.zeros(8, 3, 2, 2), torch.zeros(8, dtype=torch.int64)
    attack = create_attack("pgd", start="unclipped", steps=3)
    out = run_attack(attack, Negative(), x, y, NormBall("Linf", 0.5))
    assert out.x_adv.min() >= 0
    assert not out.fooled.any()


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.1), ("L2", 0.5), ("L1", 2.0)])
def test_rescaling_lands_in_ball_and_box_and_leaves_inner_points(norm: Norm, eps: float) -> None:
    threat = NormBall(norm, eps)
    x, _ = images(8)
    far = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    found = threat.scale_into_ball(x, far)
    assert found.min() >= 0
    assert found.max() <= 1
    assert not threat.excess(x, found).any()
    near = (x + (found - x) * 0.5).clamp(0, 1)
    torch.testing.assert_close(threat.scale_into_ball(x, near), near)
