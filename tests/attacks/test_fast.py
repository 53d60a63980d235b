"""Our own ensemble spends restarts where they pay, and queries where gradients may be hidden."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from buttress.attacks.core import AttackState, EnsembleState, create_attack
from buttress.attacks.pgd import PGD
from buttress.attacks.problem import Problem
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.threats.norm_ball import Norm, NormBall
from conftest import Linear, images, small_net

EPS: dict[Norm, float] = {"Linf": 0.03, "L2": 0.3, "L1": 3.0}


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_breaks_all_that_autoattack_breaks(norm: Norm) -> None:
    model, (x, _) = small_net(), images(24)
    y = model(x).argmax(1)
    how = AttackOptions(stop_when_fooled=True)
    threat = NormBall(norm, EPS[norm] / 3)
    slow = create_attack("autoattack", steps=50, queries=100)
    theirs = run_attack(slow, model, x, y, threat, options=how)
    ours = run_attack(create_attack("fast"), model, x, y, threat, options=how)
    assert 0 < int(theirs.fooled.sum()) < 24, "the case must have both kinds"
    assert int(ours.fooled.sum()) >= int(theirs.fooled.sum())


def test_only_samples_near_the_border_get_more() -> None:
    fast = create_attack("fast")
    clean = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    margin = torch.tensor([-0.05, -0.5, -0.99, -0.5])
    blind = torch.tensor([False, False, False, True])
    nowhere = torch.zeros_like(blind)
    standing = EnsembleState("Linf", margin, clean, blind, nowhere)

    def enlisted(part: int, standing: EnsembleState) -> list[bool]:
        chosen = fast.select_samples(part, standing)
        assert chosen is not None
        return chosen.tolist()

    assert fast.select_samples(0, standing) is None
    assert all(enlisted(1, standing._replace(has_unusable_gradient=~blind | blind))), (
        "gradients are hidden"
    )
    assert enlisted(1, standing) == [True, True, True, True]
    assert enlisted(1, standing._replace(best_margin=torch.full((4,), -0.7))) == [
        False, False, False, True,
    ]  # fmt: skip
    assert enlisted(2, standing) == [True, False, False, False]
    assert fast.select_samples(3, standing) is None, "a few queries for every sample"
    assert enlisted(4, standing) == [False, False, True, True]
    improved = torch.tensor([False, True, False, False])
    assert enlisted(4, standing._replace(is_improved=improved)) == [False, True, True, True]
    l1 = standing._replace(space="L1", best_margin=torch.tensor([-0.04, -0.1, -0.99, -0.4]))
    assert fast.select_samples(1, l1) is None
    seeing = l1._replace(has_unusable_gradient=blind & False)
    assert enlisted(2, seeing) == [True, True, True, False]
    assert enlisted(3, l1) == [True, True, False, False]
    assert enlisted(4, l1) == [True, False, False, False]
    assert fast.select_samples(5, l1) is None
    assert enlisted(6, l1) == [False, False, True, True]


class FlippedGradient(nn.Module):
    """A model whose backward pass flips the sign of the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_net()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return 2 * logits.detach() - logits


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_a_wrong_gradient_is_met_with_queries(norm: Norm) -> None:
    model, (x, _) = FlippedGradient(), images(24)
    y = model(x).argmax(1)
    threat = NormBall(norm, 3 * EPS[norm])
    out = run_attack(create_attack("fast"), model, x, y, threat)
    gradient_only = run_attack(create_attack("pgd", steps=20), model, x, y, threat)
    black_box = run_attack(create_attack("square", queries=1000), model, x, y, threat)
    assert gradient_only.fooled.sum() < black_box.fooled.sum(), "the case must be broken"
    assert out.fooled.sum() >= 0.8 * black_box.fooled.sum()


class Hidden(nn.Module):
    """A linear model behind rounding, whose gradient is zero everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner((x * 64).round() / 64)


def test_hidden_gradients_are_met_with_queries() -> None:
    model, (x, _) = Hidden(), images(16)
    y = model(x).argmax(1)
    out = run_attack(create_attack("fast"), model, x, y, NormBall("Linf", 0.03))
    assert out.counter.zero_gradient.all()
    assert out.fooled.float().mean() > 0.3
    searched = run_attack(create_attack("pgd"), model, x, y, NormBall("Linf", 0.03))
    assert out.fooled.sum() > searched.fooled.sum()


class Rising(nn.Module):
    """Ten classes, of which only the last rises with the image, from far behind to near."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1, keepdim=True)
        still = 0.9 - 0.01 * torch.arange(8.0) + 0 * mean
        return torch.cat([torch.ones_like(mean), still, 0.5 + 16 * (mean - 0.5)], 1)


def test_later_parts_aim_where_earlier_ones_came_near() -> None:
    aimed: list[Tensor] = []
    begin = PGD.init_state

    def spied(self: PGD, problem: Problem, run: Tensor) -> AttackState:
        state = begin(self, problem, run)
        aimed.append(state.target)  # type: ignore[attr-defined]
        return state

    x, y = torch.full((3, 3, 8, 8), 0.5), torch.zeros(3, dtype=torch.int64)
    fast, threat = create_attack("fast"), NormBall("Linf", 0.03)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PGD, "init_state", spied)
        out = run_attack(fast, Rising(), x, y, threat, options=AttackOptions(workers=1))
    assert not out.fooled.any()
    runs = torch.cat(aimed)
    first, later = runs[:27], runs[27:]
    assert sorted(first[::3].tolist()) == list(range(1, 10)), "each class once"
    assert int(first[0]) == 1, "the most likely one first"
    assert set(later.tolist()) == {9}, "then the one that came near, and no other"
    assert len(later) == 9, "from three starts for each of three images"
    assert bool((out.counter.stages_skipped == 1 << 4).all())


def test_two_processes_aim_at_the_same_classes() -> None:
    model, (x, _) = small_net(), images(9)
    y, fast = model(x).argmax(1), create_attack("fast")
    outs = [
        run_attack(fast, model, x, y, NormBall("L1", 0.4), options=AttackOptions(workers=n))
        for n in (1, 2)
    ]
    left = ~outs[0].fooled
    assert left.any()
    assert torch.equal(outs[0].fooled, outs[1].fooled)
    for key in ("forward", "backward", "stages_run", "stages_skipped"):
        one, two = (getattr(out.counter, key)[left] for out in outs)
        assert torch.equal(one, two), key
