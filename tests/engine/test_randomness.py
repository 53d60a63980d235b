"""Attacks on randomized models: averaged passes, their number, and the random generators."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import buttress as bt
from buttress.attacks import ATTACKS
from buttress.attacks.core import create_attack
from buttress.attacks.problem import Problem
from buttress.engine import run_attack
from buttress.engine.randomness import EOT_SAMPLES, choose_eot_samples, measure_output_noise
from buttress.errors import UserError
from buttress.system.rng import SampleRNG
from buttress.threats import NormBall, Threat
from conftest import images, small_net, threat_for

SHORT = {"steps": 3, "queries": 20, "restarts": 1, "samples": 2, "targets": 2, "angles": 3}


class NoisyLogits(nn.Module):
    """Logits with Gaussian noise of a given size, from the generator of a library."""

    def __init__(self, inner: nn.Module, sigma: float, source: str = "torch") -> None:
        super().__init__()
        self.inner, self.sigma, self.source = inner, sigma, source

    def forward(self, x: Tensor) -> Tensor:
        logits = self.inner(x)
        if self.source == "torch":
            return logits + self.sigma * torch.randn_like(logits)
        draw = np.random.randn() if self.source == "numpy" else random.gauss(0, 1)  # noqa: NPY002
        return logits + self.sigma * draw * torch.linspace(-1, 1, logits.shape[1])


class FixedLogits(nn.Module):
    """Label 0 with a margin of 1 in every image, plus noise of the margin alone."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.sigma = sigma

    def forward(self, x: Tensor) -> Tensor:
        ones = torch.ones(len(x)) + self.sigma * torch.randn(len(x))
        return torch.stack([ones, torch.zeros(len(x))], 1)


def short_args(name: str) -> dict[str, Any]:
    return {k: v for k, v in SHORT.items() if hasattr(ATTACKS.get(name), k)}


@pytest.mark.parametrize("name", [n for n in ATTACKS.names() if n != "transfer"])
def test_every_attack_averages_and_repeats_and_leaves_the_generators_alone(name: str) -> None:
    x, y = images(4)
    model = NoisyLogits(small_net(), 0.3)
    threat = Threat.parse(threat_for(name, 0.05))
    attack = create_attack(name, **short_args(name), eot_samples=3)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = run_attack(attack, model, x, y, threat)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(7)
    again = run_attack(attack, model, x, y, threat)
    assert torch.equal(first.x_adv, again.x_adv)
    assert (first.counter.forward % 3 == 0).all()


class ScaledByPass(nn.Module):
    """Logits times the number of the pass."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.passes = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.inner(x) * self.passes


def test_logits_loss_and_gradient_are_means_over_passes() -> None:
    x, y = images(4)
    net = small_net()
    rng = SampleRNG(0, "mean", torch.arange(4))
    problem = Problem.pose(ScaledByPass(net), x, y, NormBall("Linf", 0.1), rng)
    mean = replace(problem, eot_samples=3).evaluate_at(x, lambda logits: logits[:, 0])
    once = Problem.pose(net, x, y, problem.threat, rng).evaluate_at(x, lambda logits: logits[:, 0])
    assert once.grad is not None
    assert mean.grad is not None
    torch.testing.assert_close(mean.logits, 2 * once.logits)  # the mean of 1, 2 and 3
    torch.testing.assert_close(mean.loss, 2 * once.loss)
    torch.testing.assert_close(mean.grad, 2 * once.grad)


@pytest.mark.parametrize("source", ["numpy", "python"])
def test_generators_of_other_libraries_are_seeded_and_restored(source: str) -> None:
    x, y = images(4)
    model = NoisyLogits(small_net(), 0.3, source)
    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    first, again = (bt.attack("pgd", model, x, y, threat="Linf:0.05", steps=3) for _ in range(2))
    assert torch.equal(first, again)
    assert states == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002


def test_one_pass_and_many_of_a_deterministic_model_agree() -> None:
    x, y = images(6)
    once, averaged = (
        bt.attack("apgd-ce", small_net(), x, y, threat="Linf:0.05", steps=5, eot_samples=k)
        for k in (1, 2)
    )
    assert torch.equal(once, averaged)


def test_only_what_every_pass_misclassifies_is_fooled() -> None:
    class Coin(nn.Module):
        """Wrong in every second pass."""

        passes = 0

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            logits = torch.zeros(len(x), 2)
            logits[:, self.passes % 2] = 1.0 + 2 * (self.passes % 2)  # class 1 wins the mean
            return logits

    x, y = torch.rand(3, 3, 4, 4), torch.zeros(3, dtype=torch.int64)
    out = run_attack(create_attack("noise", eot_samples=4), Coin(), x, y, NormBall("Linf", 0.1))
    assert not out.fooled.any(), "half of the passes are right"
    assert (out.margin > 0).all(), "but the mean logits are not"


@pytest.mark.parametrize("sigma", [0.0, 0.05, 0.4, 2.0])
def test_the_number_of_passes_follows_the_measured_noise(sigma: float) -> None:
    x, y = torch.rand(64, 3, 4, 4), torch.zeros(64, dtype=torch.int64)
    model = FixedLogits(sigma)
    noise = measure_output_noise(model, x, y)
    assert noise.margin_std == pytest.approx(sigma, rel=0.1)
    expected = next((k for k in EOT_SAMPLES if k >= (sigma / 0.1) ** 2 * 0.8), EOT_SAMPLES[-1])
    assert choose_eot_samples(model, x, y) == expected


def test_auto_is_one_pass_for_a_deterministic_model_and_mistakes_are_explained() -> None:
    x, y = images(4)
    args: dict[str, Any] = {"threat": "Linf:0.05", "steps": 2}
    automatic = bt.attack("pgd", small_net(), x, y, eot_samples="auto", **args)
    assert torch.equal(automatic, bt.attack("pgd", small_net(), x, y, **args))
    with pytest.raises(UserError, match="eot_samples >= 1"):
        bt.attack("pgd", small_net(), x, y, eot_samples=0, **args)
    with pytest.raises(UserError, match="eot_samples"):
        bt.attack("pgd", small_net(), x, y, eot_samples="many", **args)
