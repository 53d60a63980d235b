"""Passes as CUDA graphs, with graphs that are made up on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from buttress.attacks.core import create_attack
from buttress.engine import cuda_graphs, fast_model
from buttress.engine.cuda_graphs import GraphedModel, launch_bound_rows, replay_as_cuda_graphs
from buttress.engine.fast_model import FastModel
from buttress.engine.options import AttackOptions
from buttress.engine.rewrites import NotApplicable
from buttress.engine.run import run_attack
from buttress.threats.core import Threat


class StaticPass:
    """Like a captured graph: fixed shapes, and all replays write to the same memory."""

    captured: list[tuple[int, bool]] = []  # noqa: RUF012 - of all passes of a test

    def __init__(self, function: Callable[[Tensor], Tensor], points: Tensor) -> None:
        self.function, self.static_x = function, points.detach().clone()
        with torch.no_grad():
            self.static_logits = function(self.static_x).clone()
        self.static_grad = torch.zeros_like(self.static_x)
        StaticPass.captured.append((len(points), points.requires_grad))

    def __call__(self, x: Tensor) -> Tensor:
        assert x.shape == self.static_x.shape
        logits: Tensor = _Replay.apply(x, self)
        return logits


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, static: StaticPass) -> Tensor:
        ctx.static = static
        static.static_x.copy_(x)
        static.static_logits.copy_(static.function(static.static_x))
        return static.static_logits.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        static = ctx.static  # whatever was replayed last
        with torch.enable_grad():
            point = static.static_x.clone().requires_grad_(True)
            (grad,) = torch.autograd.grad(static.function(point), point, grads[0])
        return static.static_grad.copy_(grad).detach(), None


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    StaticPass.captured = []
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 5)).eval()


@pytest.fixture
def x() -> Tensor:
    return torch.rand(11, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def gradient(model: nn.Module, x: Tensor) -> Tensor:
    point = x.clone().requires_grad_(True)
    return torch.autograd.grad(model(point).square().sum(), point)[0]


def test_logits_and_gradients_are_those_of_the_model(model: nn.Module, x: Tensor) -> None:
    graphed = GraphedModel(model, 8, StaticPass)
    with torch.no_grad():
        # Kept and compared at the end: a later replay must not write to earlier results.
        logits = [(n, graphed(x[:n])) for n in (1, 3, 4, 7, 8, 11, 3)]
    grads = [(n, gradient(graphed, x[:n])) for n in (4, 3, 8, 4)]
    assert all(torch.allclose(out, model(x[:n]), atol=1e-6) for n, out in logits)
    assert all(torch.allclose(grad, gradient(model, x[:n]), atol=1e-6) for n, grad in grads)
    # One graph for each power of two, with and without gradients, and none for eleven rows.
    assert StaticPass.captured == [(1, False), (4, False), (8, False), (4, True), (8, True)]


def test_a_pass_waits_for_no_gradient_of_another(model: nn.Module, x: Tensor) -> None:
    graphed = GraphedModel(model, 8, StaticPass)
    points = [part.clone().requires_grad_(True) for part in x.split(4)[:2]]
    total = sum(graphed(point).square().sum() for point in points)
    assert isinstance(total, Tensor)
    for point, grad in zip(points, torch.autograd.grad(total, points), strict=True):
        assert torch.allclose(grad, gradient(model, point.detach()), atol=1e-6)


def test_several_gradients_of_one_pass(model: nn.Module, x: Tensor) -> None:
    graphed = GraphedModel(model, 8, StaticPass)
    rows = []
    for net in (graphed, model):
        point = x[:3].clone().requires_grad_(True)
        logits = net(point)
        rows.append(
            [torch.autograd.grad(logits[:, k].sum(), point, retain_graph=True)[0] for k in range(5)]
        )
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*rows, strict=True))


def test_a_gradient_whose_activations_are_gone_is_refused(model: nn.Module, x: Tensor) -> None:
    graphed = GraphedModel(model, 8, StaticPass)
    point = x[:4].clone().requires_grad_(True)
    logits = graphed(point)
    torch.autograd.grad(logits.sum(), point, retain_graph=True)
    graphed(x[4:8].clone().requires_grad_(True))  # the first gradient was taken: replayed
    with pytest.raises(RuntimeError, match="replayed before the gradient"):
        torch.autograd.grad(logits.sum(), point)


def test_a_pass_that_cannot_be_captured_is_made_as_before(model: nn.Module, x: Tensor) -> None:
    def capture(function: Callable[[Tensor], Tensor], points: Tensor) -> StaticPass:
        if len(points) != 2:
            raise RuntimeError("out of memory")
        return StaticPass(function, points)

    graphed = GraphedModel(model, 8, capture)
    with pytest.raises(RuntimeError, match="out of memory"), torch.no_grad():
        graphed(x[:1])
    with torch.no_grad():
        graphed(x[:2])
        assert torch.allclose(graphed(x[:7]), model(x[:7]), atol=1e-6)


def test_only_short_passes_on_a_cuda_device(
    model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotApplicable, match="not on a CUDA device"):
        replay_as_cuda_graphs(model, x)
    macs = 4 * 27 * 36 + 144 * 5
    monkeypatch.setattr(cuda_graphs, "LAUNCH_BOUND_MACS", 21 * macs)
    assert launch_bound_rows(model, x) == 16
    monkeypatch.setattr(cuda_graphs, "LAUNCH_BOUND_MACS", macs - 1)
    with pytest.raises(NotApplicable, match="takes longer than the launches"):
        launch_bound_rows(model, x)


@pytest.mark.parametrize("name", ["pgd", "apgd-t", "fab", "square"])
def test_attacks_on_graphs_are_recorded_and_find_the_same(
    model: nn.Module, x: Tensor, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rewrite(model: nn.Module, x: Tensor) -> nn.Module:
        return GraphedModel(model, 8, StaticPass)

    steps = {"queries" if name == "square" else "steps": 10}
    y, attack, threat = model(x).argmax(1), create_attack(name, **steps), Threat.parse("Linf:0.03")
    expected = run_attack(attack, model, x, y, threat)
    monkeypatch.setattr(fast_model, "REWRITES", ())
    monkeypatch.setitem(fast_model.DEVICE_REWRITES, "cpu", (("CUDA graphs", rewrite),))
    options = AttackOptions(fast_model=FastModel.select(model, x), workers=1)
    result = run_attack(attack, model, x, y, threat, options=options)
    assert options.fast_model is not None
    assert options.fast_model.notes[0] == "CUDA graphs"
    assert torch.equal(result.fooled, expected.fooled)
    assert torch.allclose(result.x_adv, expected.x_adv, atol=1e-4)
