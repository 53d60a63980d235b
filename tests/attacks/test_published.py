"""What published protocols need of attacks: their start, their projection, their last point."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from buttress.attacks.call import How, create_attack, run_attack
from buttress.streams import Streams
from buttress.threat import Norm, Threat
from conftest import Linear, images, small_net


def by_hand(model: torch.nn.Module, x: Tensor, y: Tensor, threat: Threat, first: Tensor) -> Tensor:
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
    threat = Threat(norm, eps)
    streams = Streams(0, "pgd", torch.arange(24))
    draw = threat.random_start if start == "random" else threat.random_point
    right = by_hand(model, x, y, threat, draw(x, streams, torch.zeros(24, dtype=torch.int64)))
    args = {"steps": 5, "rel_step": 0.3, "keep": "last", "projection": "radial", "start": start}
    out = run_attack(create_attack("pgd", **args), model, x, y, threat)
    broken = model(right).argmax(1) != y
    assert 0 < int(broken.sum()) < 24, "the case must have both kinds"
    assert torch.equal(out.broken, broken)
    torch.testing.assert_close(out.x_adv[broken], right[broken])


@pytest.mark.parametrize("name", ["pgd", "cw", "gama"])
def test_an_early_success_does_not_count_if_only_the_last_point_does(name: str) -> None:
    """A model that is wrong only near one place, which longer steps leave again."""
    model, (x, _) = small_net(), images(32)
    y = model(x).argmax(1)
    threat, how = Threat("Linf", 0.02), How(stop_when_broken=True)
    args = {"steps": 6} if name == "gama" else {"steps": 6, "rel_step": 2.0}
    best, last = (
        run_attack(create_attack(name, keep=keep, **args), model, x, y, threat, how=how)
        for keep in ("best", "last")
    )
    assert not (last.broken & ~best.broken).any()
    survivors = ~best.broken
    assert (last.meter.forward[survivors] == best.meter.forward[survivors]).all()
    assert (last.meter.forward >= best.meter.forward).all(), "nobody leaves before the last point"


def test_a_start_outside_the_box_never_counts() -> None:
    model = Linear(12, 2)
    x = torch.zeros(4, 3, 2, 2)
    y = torch.zeros(4, dtype=torch.int64)
    out = run_attack(
        create_attack("pgd", start="unclipped", steps=3), model, x, y, Threat("Linf", 0.5)
    )
    assert out.x_adv.min() >= 0


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.1), ("L2", 0.5), ("L1", 2.0)])
def test_rescaling_lands_in_ball_and_box_and_leaves_inner_points(norm: Norm, eps: float) -> None:
    threat = Threat(norm, eps)
    x, _ = images(8)
    far = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    found = threat.rescale(x, far)
    assert found.min() >= 0
    assert found.max() <= 1
    assert not threat.excess(x, found).any()
    near = (x + (found - x) * 0.5).clamp(0, 1)
    torch.testing.assert_close(threat.rescale(x, near), near)
