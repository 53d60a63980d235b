"""Forecasts of the Square attack: they spare passes, and lose nothing where gradients mislead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from buttress.attacks.core import create_attack
from buttress.attacks.losses import margin
from buttress.attacks.problem import Problem, input_gradient
from buttress.attacks.square import attack as squares
from buttress.attacks.square import skipping as forecasts
from buttress.attacks.square import speculative as sprints
from buttress.attacks.square.attack import Square
from buttress.attacks.square.proposals import L1_MARGIN, draw_proposals
from buttress.attacks.square.windows import draw_query_bits, window_side_schedule
from buttress.engine.batching import AttackResult
from buttress.engine.run import AttackOptions, run_attack
from buttress.system.rng import SampleRNG, logical_shift_right
from buttress.threats.norm_ball import Norm, Threat
from conftest import Linear, images, small_net

SIZE = 17  # every pixel counts: no two points have the same loss
Case = tuple[nn.Module, Tensor, Tensor]


def case(n: int, model: nn.Module | None = None) -> Case:
    model = (small_net(size=SIZE) if model is None else model).double()
    x = images(n, size=SIZE)[0].double()
    with torch.no_grad():
        return model, x, model(x).argmax(1)


def found(attack: Square, case: Case, threat: Threat, **how: Any) -> AttackResult:
    return run_attack(attack, *case, threat, options=AttackOptions(workers=1, **how))


class Plain:
    """The attack as it is described, one query after the other, for one image."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, sample: int) -> None:
        streams = SampleRNG(0, "square", torch.tensor([sample]))
        self.model, self.problem = model, Problem(model, x[None], y[None], threat, streams)
        state = Square().init_state(self.problem, torch.zeros(1, dtype=torch.int64))
        self.key, self.best_x = state.key, state.x_t  # type: ignore[attr-defined]
        self.best, self.passes = self.margin(self.best_x), 2  # of the clean image, and the start

    def margin(self, x: Tensor) -> float:
        with torch.no_grad():
            return float(margin(self.model(x), self.problem.y))

    def slope(self) -> Tensor:
        point = self.best_x.clone().requires_grad_(True)
        return input_gradient(margin(self.model(point), self.problem.y).sum(), point)

    def run(self, queries: int) -> None:
        table = window_side_schedule(queries, 0.8, SIZE, SIZE, self.problem.threat.norm)
        error, errors = torch.inf, []  # type: float, list[float]
        for query in range(queries):
            bits = draw_query_bits(self.key, torch.tensor([query]), 1)[0]
            new = squares._propose_points(self.problem, self.best_x, table[query][None], bits)
            if query > 200 and (query - 1) % forecasts.QUERIES_PER_GRADIENT == 0:
                slope = self.slope()
                self.passes += 1
                weight = 0 if error == torch.inf else forecasts.PRIOR_COUNT
                if weight + len(errors) >= forecasts.MIN_ERRORS:
                    known = weight * error if weight else 0.0
                    error = (known + sum(e**2 for e in errors)) / (weight + len(errors))
                    errors = []
            if query > 200:
                patches = draw_proposals(self.problem, int(table[query]), bits[None])
                effect = patches.linear_effect(self.problem, self.best_x, slope)
                change, size = float(effect.margin_change), float(effect.move_size)
                is_worse = change < -forecasts.ERROR_FACTOR * error**0.5 * size
                is_sampled = int(logical_shift_right(bits, 59)) % forecasts.SAMPLING_INTERVAL == 0
                if size == 0 or (is_worse and not is_sampled):
                    continue
            loss = self.margin(new)
            self.passes += 1
            if query > 200:
                errors.append((loss - self.best - change) / size)
            if loss > self.best:
                self.best, self.best_x = loss, new


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.03), ("L2", 0.3), ("L1", 3.0)])
def test_forecasts_decide_as_one_query_after_the_other(norm: Norm, eps: float) -> None:
    """Whatever shares a batch, and however many queries are tried at once."""
    model, x, y = case(4)
    attack, threat, outs = Square(queries=800, forecast=True), Threat(norm, eps), []
    for most in (1, 8):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sprints, "MAX_SPECULATIVE", most)
            patch.setattr(sprints, "MAX_WASTE_SKIPPING", 5.0)
            outs.append(found(attack, (model, x, y), threat))
    for row in range(len(x)):
        plain = Plain(model, x[row], y[row], threat, row)
        plain.run(800)
        for out in outs:
            torch.testing.assert_close(out.x_adv[row], plain.best_x[0], rtol=0, atol=1e-9)
            assert float(out.margin[row]) == pytest.approx(plain.best, abs=1e-9)
            assert int(out.counter.backward[row]) == 6, "one gradient for a hundred queries"
        one, many = (int(out.counter.forward[row]) for out in outs)
        assert one == plain.passes
        assert plain.passes <= many < 2 * plain.passes, "some are tried in vain"
    assert outs[1].counter.forward.sum() > outs[0].counter.forward.sum()


@pytest.mark.parametrize("most", [1, 4, 16])
def test_how_many_are_tried_at_once_changes_nothing(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threat, attack = Threat("Linf", 0.03), Square(queries=600, forecast=True)
    together = found(attack, case(6), threat)
    monkeypatch.setattr(sprints, "MAX_SPECULATIVE", most)
    monkeypatch.setattr(sprints, "MAX_WASTE_SKIPPING", 5.0)
    again = found(attack, case(6), threat, batch_size=4)
    torch.testing.assert_close(again.x_adv, together.x_adv, rtol=0, atol=1e-9)


def test_images_that_come_later_change_nothing() -> None:
    """Small batches are filled up while others are under way; each image goes its own way."""
    threat, attack = Threat("Linf", 0.09), Square(queries=900, forecast=True)
    net = case(16)
    outs = [found(attack, net, threat, batch_size=n, stop_when_fooled=True) for n in (64, 5)]
    late = outs[0].fooled & (outs[0].counter.forward > 250)
    assert late.any(), "some leave when others are in sprints"
    assert not outs[0].fooled.all()
    assert torch.equal(outs[0].fooled, outs[1].fooled)
    torch.testing.assert_close(outs[0].x_adv, outs[1].x_adv, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.03), ("L2", 0.3), ("L1", 9.0)])
def test_where_a_model_is_linear_a_few_passes_find_the_same(norm: Norm, eps: float) -> None:
    linear = case(5, Linear(3 * SIZE**2, 10))
    threat = Threat(norm, eps / 30)
    plain, quick = (found(Square(queries=1500, forecast=f), linear, threat) for f in (False, True))
    assert not plain.fooled.any()
    torch.testing.assert_close(quick.margin, plain.margin, rtol=0, atol=1e-6)
    assert float((quick.x_adv - plain.x_adv).abs().max()) < (1e-9 if norm == "Linf" else 1e-4)
    late = quick.counter.forward - 203
    assert int(late.max()) < 0.45 * 1300


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.01), ("L1", 1.0)])
def test_most_passes_are_spared_and_hardly_anything_is_lost(norm: Norm, eps: float) -> None:
    net, threat = case(8), Threat(norm, eps)
    plain, quick = (found(Square(queries=1500, forecast=f), net, threat) for f in (False, True))
    assert quick.counter.forward.sum() < 0.6 * plain.counter.forward.sum()
    gained = plain.margin - margin(net[0](net[1]), net[2])
    assert bool((quick.margin - plain.margin).abs().mean() < 0.02 * gained.mean())


class Lying(nn.Module):
    """Right answers, and gradients that mislead."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how = small_net(size=SIZE), how

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(_Wrong.apply(x, self.how))


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, how: str) -> Tensor:
        ctx.how = how
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0]
        noise = torch.sin(1e6 * torch.arange(grad[0].numel())).view_as(grad[0]).to(grad)
        wrong = {
            "not at all": grad,
            "zero": grad * 0,
            "backwards": -grad,
            "noise": noise.expand_as(grad) * grad.abs().mean(),
            "huge": 1e4 * noise.expand_as(grad),
            "nothing": torch.full_like(grad, torch.nan),
        }
        return wrong[ctx.how], None


@pytest.mark.parametrize("how", ["zero", "backwards", "noise", "huge", "nothing"])
def test_a_lying_gradient_loses_nothing(how: str) -> None:
    threat, lying = Threat("Linf", 0.01), case(6, Lying(how))
    plain, quick = (found(Square(queries=1000, forecast=f), lying, threat) for f in (False, True))
    clean = margin(lying[0](lying[1]), lying[2])
    gained = (plain.margin - clean).detach()
    assert bool(((quick.margin - plain.margin) > -0.1 * gained).all())
    tried = quick.counter.forward.sum() / plain.counter.forward.sum()
    assert tried > 0.9, "forecasts that err are not heeded"
    if how == "zero":
        torch.testing.assert_close(quick.x_adv, plain.x_adv, rtol=0, atol=1e-9)


def test_autoattack_breaks_what_only_queries_break() -> None:
    """Gradients that are zero: the three parts before Square find nothing."""
    hidden = case(12, Lying("zero"))
    threat, attack = Threat("Linf", 0.12), create_attack("autoattack", steps=3, queries=1000)
    whole = run_attack(attack, *hidden, threat)
    alone = run_attack(create_attack("square", queries=1000), *hidden, threat)
    assert int(alone.fooled.sum()) > 0
    assert int(whole.fooled.sum()) >= int(alone.fooled.sum())


@pytest.mark.parametrize("how", ["zero", "backwards", "noise", "huge", "nothing"])
def test_a_lying_gradient_loses_nothing_in_l1(how: str) -> None:
    """Most windows are empty there: with true gradients few queries are tried, with others more."""
    threat, attack = Threat("L1", 1.0), Square(queries=1000, forecast=True)
    lying, true = case(6, Lying(how)), case(6, Lying("not at all"))
    plain, quick = found(Square(queries=1000), lying, threat), found(attack, lying, threat)
    clean = margin(lying[0](lying[1]), lying[2])
    gained = (plain.margin - clean).detach()
    assert bool(((quick.margin - plain.margin) > -0.1 * gained).all())
    assert quick.counter.forward.sum() > 1.2 * found(attack, true, threat).counter.forward.sum()


def test_queries_of_empty_windows_are_left_out_in_l1() -> None:
    x, key = 0.4 + 0.2 * images(4, size=11)[0].double(), torch.arange(4)
    problem = Problem(small_net(), x, key, Threat("L1", 0.3), SampleRNG(0, "square", key))
    best = x.clone()
    best[:, 0, 0, 0] += 0.3 * L1_MARGIN  # all there is, in a corner
    patches = draw_proposals(problem, 3, draw_query_bits(key, torch.zeros_like(key), 40))
    effect = patches.linear_effect(problem, best, torch.ones_like(x))
    moved = (patches.apply_to(problem, best) - best[:, None]).flatten(2).norm(dim=2)
    assert torch.equal(effect.move_size == 0, moved < 1e-4)
    assert 0.5 < float((effect.move_size == 0).double().mean()) < 1


def test_no_forecasts_without_gradients() -> None:
    class Blind(nn.Module):
        has_gradients = False

        def __init__(self) -> None:
            super().__init__()
            self.inner = small_net(size=SIZE)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.detach())

    net, threat = case(3, Blind()), Threat("Linf", 0.02)
    out = found(Square(queries=400, forecast=True), net, threat)
    assert not out.counter.backward.any()
    assert bool((out.counter.forward >= 402).all())
    plain = found(Square(queries=400), net, threat)
    torch.testing.assert_close(out.x_adv, plain.x_adv, rtol=0, atol=1e-9)


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_what_queries_are_said_to_change(norm: Norm) -> None:
    x, key = 0.4 + 0.2 * images(4, size=11)[0].double(), torch.arange(4)  # the box cuts nothing
    eps = {"Linf": 0.05, "L2": 0.5, "L1": 1.0}[norm]
    problem = Problem(small_net(), x, key, Threat(norm, eps), SampleRNG(0, "square", key))
    best, slope = problem.random_start(1), images(8, size=11)[0][4:].double() - 0.5
    patches = draw_proposals(problem, 3, draw_query_bits(key, torch.zeros_like(key), 40))
    move = (patches.apply_to(problem, best) - best[:, None]).flatten(2)
    effect = patches.linear_effect(problem, best, slope)
    right = torch.einsum("nkp,np->nk", move, slope.flatten(1))
    torch.testing.assert_close(effect.margin_change, right, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(effect.move_size, move.norm(dim=2), rtol=1e-6, atol=1e-7)


def test_a_query_that_moves_nothing_is_never_tried() -> None:
    """In the corner of the ball that is best for a linear model, every query leaves or stays."""
    model = Linear(3 * SIZE**2, 2).double()
    with torch.no_grad():
        model.weight[0], model.weight[1] = 0.0, 1.0
        model.bias[0] = 1e4
    x = 0.25 + 0.5 * images(3, size=SIZE)[0].double()
    y = torch.zeros(3, dtype=torch.int64)
    out = found(Square(queries=900, forecast=True), (model, x, y), Threat("Linf", 0.01))
    at_border = (out.x_adv - x).flatten(1) > 0.0099
    assert float(at_border.double().mean()) > 0.9
    assert int(out.counter.forward.max()) < 203 + 0.4 * 700
