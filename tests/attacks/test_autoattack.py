"""The ensemble: its members and their budgets, what it costs, and examples of other models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from buttress.attacks import apgd, fab
from buttress.attacks.apgd import APGDCE, APGDDLR, APGDT
from buttress.attacks.apgd_l1 import build_phase_table
from buttress.attacks.autoattack import AutoAttack
from buttress.attacks.core import Attack, create_attack
from buttress.attacks.fab import FAB, FABT
from buttress.attacks.pgd import PGD
from buttress.attacks.problem import Problem
from buttress.attacks.square.attack import Square
from buttress.attacks.targets import choose_target
from buttress.attacks.transfer import Transfer
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.errors import UserError
from buttress.threats.norm_ball import NORMS, Norm, NormBall
from conftest import Linear, images, small_net

EPS: dict[Norm, float] = {"Linf": 0.04, "L2": 0.4, "L1": 1.5}  # breaks some, not all
TINY = 1e-3  # a radius at which nothing breaks
SQUARE = Square(queries=5000, restarts=1)
FAB_T = FABT(steps=100, targets=9, restarts=1)


def standard(restarts: int, targets: int) -> tuple[Attack, ...]:
    ce = APGDCE(steps=100, restarts=restarts, use_larger_eps=True)
    return ce, APGDT(steps=100, targets=targets, restarts=1, use_larger_eps=True), FAB_T, SQUARE


PLUS = (
    APGDCE(steps=100, restarts=5, use_larger_eps=False),
    APGDDLR(steps=100, restarts=5, use_larger_eps=False),
    FAB(steps=100, restarts=5),
    SQUARE,
    APGDT(steps=100, targets=9, restarts=1, use_larger_eps=False),
    FAB_T,
)
RAND = tuple(
    kind(steps=100, restarts=1, eot_samples=20, use_larger_eps=False) for kind in (APGDCE, APGDDLR)
)


@pytest.mark.parametrize(
    ("version", "norm", "members"),
    [
        ("standard", "Linf", standard(restarts=1, targets=9)),
        ("standard", "L2", standard(restarts=1, targets=9)),
        ("standard", "L1", standard(restarts=5, targets=5)),
        *(("plus", norm, PLUS) for norm in NORMS),
        *(("rand", norm, RAND) for norm in NORMS),
    ],
)
def test_members_and_their_budgets(version: Any, norm: Norm, members: tuple[Attack, ...]) -> None:
    assert AutoAttack(version).stage_attacks(norm) == members


def test_budgets_can_be_shortened() -> None:
    for version in ("standard", "plus", "rand"):
        for part in AutoAttack(version, steps=7, queries=30).stage_attacks("L2"):
            word, expected = ("queries", 30) if isinstance(part, Square) else ("steps", 7)
            assert getattr(part, word) == expected


def test_a_custom_list_takes_names_and_mappings() -> None:
    attack = AutoAttack("custom", attacks=["fab-t", {"attack": "pgd", "steps": 3}, "square"])
    assert attack.stage_attacks("L2") == (FAB_T, PGD(steps=3), SQUARE)
    model, (x, y) = small_net(), images(4)
    out = run_attack(
        create_attack("autoattack", version="custom", attacks=[{"attack": "pgd", "steps": 3}]),
        model, x, y, NormBall("Linf", EPS["Linf"]),
    )  # fmt: skip
    assert out.fooled.any()


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ({"version": "extra"}, "standard, plus, rand, custom"),
        ({"version": "custom"}, "needs `attacks"),
        ({"attacks": ["pgd"]}, "only it takes them"),
        ({"version": "custom", "attacks": ["autoattack"]}, "another ensemble"),
        ({"version": "custom", "attacks": ["apgd-ec"]}, "did you mean 'apgd-ce'"),
        ({"version": "custom", "attacks": [{"steps": 3}]}, "needs `attack: NAME`"),
        (
            {"version": "custom", "attacks": [{"attack": "pgd", "step": 3}]},
            "unknown argument 'step'",
        ),
        ({"steps": 0}, "steps >= 1"),
        ({"queries": 0}, "queries >= 1"),
    ],
)
def test_mistakes_are_explained(args: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        create_attack("autoattack", **args)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("version", ["standard", "plus"])
def test_few_classes_work_and_the_label_is_never_the_target(
    version: str, classes: int, norm: Norm, monkeypatch: pytest.MonkeyPatch
) -> None:
    aims: set[tuple[int, int]] = set()

    def spied(problem: Problem, how: Any, run: Tensor) -> Tensor:
        target = choose_target(problem, how, run)
        aims.update(zip(problem.y.tolist(), target.tolist(), strict=True))
        return target

    for module in (apgd, fab):
        monkeypatch.setattr(module, "choose_target", spied)
    model, (x, _) = small_net(classes).double(), images(6)
    x = x.double()
    y = torch.arange(6) % classes
    with torch.no_grad():
        y[:4] = model(x[:4]).argmax(1)
    out = run_attack(
        create_attack("autoattack", version=version, steps=5, queries=20),
        model, x, y, NormBall(norm, TINY),
    )  # fmt: skip
    assert all(label != target for label, target in aims)
    robust = {int(label) for label in y[~out.fooled]}
    assert aims == {(a, b) for a in robust for b in range(classes) if a != b}
    assert torch.equal(model(out.x_adv).argmax(1) != y, out.fooled)


class Counting(nn.Module):
    """Counts the rows that pass forward, and those a gradient comes back to."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.forward_rows, self.backward_rows = inner, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.forward_rows += len(x)
        if x.requires_grad:
            x.register_hook(self._back)
        return self.inner(x)

    def _back(self, grad: Tensor) -> None:
        self.backward_rows += len(grad)


def robust_case(n: int = 3) -> tuple[nn.Module, Tensor, Tensor]:
    """Images that are right, and far from every boundary for a radius of `TINY`."""
    model, x = small_net().double(), images(n)[0].double()
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize("norm", NORMS)
def test_a_survivor_costs_what_the_parts_cost(norm: Norm) -> None:
    model, x, y = robust_case()
    threat, args = NormBall(norm, TINY), {"steps": 5, "queries": 20}
    out = run_attack(create_attack("autoattack", **args), model, x, y, threat)
    assert not out.fooled.any()
    restarts, targets, looks = 1, 9, 6
    if norm == "L1":
        restarts, targets, looks = 5, 5, build_phase_table(5, True).num_steps + 1
    fab_t = run_attack(FABT(steps=5), model, x, y, threat).counter  # how often it turns back varies
    forward = 1 + (restarts + targets) * looks + (fab_t.forward - 1) + 21
    assert torch.equal(out.counter.forward, forward)
    backward = (restarts + targets) * (looks - 1) + fab_t.backward
    assert torch.equal(out.counter.backward, backward)


@pytest.mark.parametrize("version", ["standard", "plus", "rand"])
def test_passes_are_counted_as_the_model_sees_them(version: str) -> None:
    net, (x, y) = small_net().double(), images(8)
    x, model = x.double(), Counting(net)
    y[:5] = net(x[:5]).argmax(1)
    chosen = create_attack("autoattack", version=version, steps=3, queries=5)
    out = run_attack(
        chosen, model, x, y, NormBall("Linf", 0.01), options=AttackOptions(batch_size=5)
    )
    assert 0 < int(out.fooled.sum()) < 8, "the case must have both kinds"
    assert model.forward_rows == int(out.counter.forward.sum()) + 1  # one to see that it works
    assert model.backward_rows == int(out.counter.backward.sum())


@pytest.mark.parametrize("norm", NORMS)
def test_parts_see_only_what_the_parts_before_them_left(norm: Norm) -> None:
    model, x, y = robust_case(12)
    first: dict[str, Any] = {"attack": "pgd", "steps": 5, "start": "clean"}
    one, two = (
        run_attack(
            create_attack("autoattack", version="custom", attacks=parts),
            model, x, y, NormBall(norm, EPS[norm]), options=AttackOptions(stop_when_fooled=True),
        )
        for parts in ([first], [first, {"attack": "square", "queries": 10}])
    )  # fmt: skip
    broken = one.fooled
    assert 0 < int(broken.sum()) < 12, "the case must have both kinds"
    assert torch.equal(two.counter.forward[broken], one.counter.forward[broken])
    assert torch.equal(two.x_adv[broken], one.x_adv[broken])
    assert bool((two.counter.forward[~two.fooled] == one.counter.forward[~two.fooled] + 11).all())


def test_samples_that_are_wrong_from_the_start_cost_one_pass() -> None:
    model, x, y = robust_case(4)
    y[0] = (y[0] + 1) % 10
    chosen = create_attack("autoattack", steps=2, queries=2)
    out = run_attack(chosen, model, x, y, NormBall("Linf", TINY))
    assert out.fooled.tolist() == [True, False, False, False]
    assert int(out.counter.forward[0]) == 1
    assert torch.equal(out.x_adv[0], x[0])


def test_parts_draw_their_own_noise() -> None:
    model, x, y = robust_case(4)
    parts = [{"attack": "noise", "samples": 1}]
    two, three = (
        run_attack(AutoAttack("custom", attacks=parts * n), model, x, y, NormBall("Linf", TINY))
        for n in (2, 3)
    )
    assert bool((three.margin >= two.margin).all())
    assert bool((three.margin > two.margin).any())


class Shaken(nn.Module):
    """Logits with a large disturbance in every second pass."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.passes = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        shake = torch.linspace(-100.0, 100.0, 10, dtype=x.dtype)
        return self.inner(x) + (shake if self.passes % 2 else 0)


def test_rand_averages_twenty_passes_at_every_point() -> None:
    net, x, y = robust_case()
    model = Shaken(net)
    attack = create_attack("autoattack", version="rand", steps=4)
    out = run_attack(attack, model, x, y, NormBall("Linf", TINY))
    looks = 1 + 2 * 5  # the clean image, and two members with a start and four steps
    assert model.passes == 20 * looks + 1
    assert out.counter.forward.tolist() == [20 * looks] * 3
    assert out.counter.backward.tolist() == [20 * 2 * 4] * 3
    assert not out.fooled.any(), "half of the passes predict the label"
    once = run_attack(create_attack("pgd", steps=4), Shaken(net), x, y, NormBall("Linf", TINY))
    assert once.fooled.any(), "a single pass may not"


class Blind(nn.Module):
    """A model that must not be asked for a gradient."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        assert not x.requires_grad
        return self.inner(x)


@pytest.mark.parametrize("norm", NORMS)
def test_transfer_from_the_model_itself_breaks_what_the_attack_breaks(norm: Norm) -> None:
    model, x, y = robust_case(8)
    threat, args = NormBall(norm, EPS[norm]), {"steps": 5, "start": "clean"}
    direct = run_attack(create_attack("pgd", **args), model, x, y, threat)
    chosen = create_attack("transfer", sources=[model], attack="pgd", args=args)
    out = run_attack(chosen, Blind(model), x, y, threat)
    assert 0 < int(direct.fooled.sum()) < 8, "the case must have both kinds"
    assert torch.equal(out.fooled, direct.fooled)
    torch.testing.assert_close(out.x_adv[out.fooled], direct.x_adv[out.fooled])
    assert out.counter.forward.tolist() == [2] * 8  # clean, and the one example
    assert out.counter.backward.tolist() == [0] * 8


def test_transfer_takes_the_worst_of_its_sources() -> None:
    model, x, y = robust_case(16)
    sources, threat = [small_net(seed=seed) for seed in (1, 2)], NormBall("Linf", 0.1)
    single, both = (
        [run_attack(Transfer(sources=s, args={"steps": 5}), Blind(model), x, y, threat) for s in z]
        for z in ([sources[:1], sources[1:]], [sources])
    )
    assert both[0].counter.forward.tolist() == [3] * 16
    assert bool((both[0].fooled >= single[0].fooled).all())
    assert bool((both[0].margin >= single[0].margin - 1e-9).all())
    assert bool((both[0].margin > single[0].margin).any())


def test_sources_come_back_as_they_were() -> None:
    model, x, y = robust_case(2)
    source = small_net(seed=1).train()
    before = {k: v.clone() for k, v in source.state_dict().items()}
    run_attack(Transfer(sources=[source], args={"steps": 2}), model, x, y, NormBall("Linf", 0.1))
    assert all(module.training for module in source.modules())
    assert all(p.requires_grad and p.grad is None for p in source.parameters())
    assert all(torch.equal(v, before[k]) for k, v in source.state_dict().items())


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ({}, "needs `sources"),
        ({"sources": []}, "needs `sources"),
        ({"sources": "runs/one"}, "needs `sources"),
        ({"sources": Linear(4, 2)}, "needs `sources"),
        ({"sources": [Linear(4, 2)], "attack": "transfer"}, "cannot be `transfer`"),
        ({"sources": [Linear(4, 2)], "attack": "pdg"}, "did you mean 'pgd'"),
        ({"sources": [Linear(4, 2)], "args": {"step": 2}}, "unknown argument 'step'"),
    ],
)
def test_mistakes_with_sources_are_explained(args: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        create_attack("transfer", **args)


class _ZeroGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 0


class Masked(nn.Module):
    """Right logits, and gradients that are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_net(size=17)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(_ZeroGradient.apply(x))


def test_square_fools_what_gradients_do_not_and_makes_every_query() -> None:
    model, x = Masked().double(), images(12, size=17)[0].double()
    y = model(x).argmax(1)
    threat, attack = NormBall("Linf", 0.12), create_attack("autoattack", steps=3, queries=1000)
    whole = run_attack(attack, model, x, y, threat)
    alone = run_attack(Square(queries=1000), model, x, y, threat)
    assert alone.fooled.any()
    assert int(alone.fooled.sum()) <= int(whole.fooled.sum()) < len(x)
    short = run_attack(create_attack("autoattack", steps=3, queries=1), model, x, y, threat)
    backward = (whole.counter.backward - short.counter.backward)[~short.fooled]
    assert not backward.any(), "queries take no gradient"
    assert bool((whole.counter.forward[~whole.fooled] > 1000).all())
