"""Every objective equals its formula on a case worked out another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from buttress.attacks.problem import ModelOutput
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import NormBall
from buttress.training import OBJECTIVES
from buttress.training.objectives import TrainingBatch, alp, fat, gairat, mart, multi_norm, trades
from buttress.training.objectives import inner_maximization as inner
from buttress.training.objectives.inner_maximization import run_inner_attack
from conftest import Linear, images, taken

N, K = 6, 4


@pytest.fixture
def model() -> Linear:
    return Linear(3 * 8 * 8, K).double()


@pytest.fixture
def step() -> TrainingBatch:
    x, _ = images(N)
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    return TrainingBatch(
        x.double(), y, NormBall("Linf", 0.03), SampleRNG(0, "train", torch.arange(N))
    )


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def logits_of(model: nn.Module, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(x).numpy())


def perturbed(step: TrainingBatch) -> Tensor:
    source = torch.Generator().manual_seed(5)
    noise = torch.rand(step.x.shape, generator=source, dtype=torch.float64)
    return (step.x + 0.03 * (2 * noise - 1)).clamp(0, 1)


def fake_attack(monkeypatch: pytest.MonkeyPatch, module: object, x_adv: Tensor) -> None:
    """The attack finds these images."""
    for place in (module, inner):
        if hasattr(place, "run_inner_attack"):
            monkeypatch.setattr(place, "run_inner_attack", lambda *args, **kwargs: x_adv)


def loss_of(name: str, model: nn.Module, step: TrainingBatch, **args: object) -> float:
    return float(taken(OBJECTIVES.create(name, args), model, step).loss.detach())


def test_trades(model: nn.Module, step: TrainingBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_attack(monkeypatch, trades, perturbed(step))
    p, q = softmax(logits_of(model, step.x)), softmax(logits_of(model, perturbed(step)))
    clean_loss = -np.log(p[np.arange(N), step.y]).mean()
    divergence = (p * np.log(p / q)).sum(1).mean()
    assert loss_of("trades", model, step, beta=6.0) == pytest.approx(clean_loss + 6 * divergence)
    assert loss_of("trades", model, step, beta=0.5) == pytest.approx(clean_loss + 0.5 * divergence)


def test_mart(model: nn.Module, step: TrainingBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_attack(monkeypatch, mart, perturbed(step))
    p, q = softmax(logits_of(model, step.x)), softmax(logits_of(model, perturbed(step)))
    total = 0.0
    for i, y in enumerate(step.y.tolist()):
        other = max(q[i, k] for k in range(K) if k != y)
        boosted = -np.log(q[i, y]) - np.log(1.0001 - other + 1e-12)
        divergence = sum(p[i, k] * np.log((p[i, k] + 1e-12) / (q[i, k] + 1e-12)) for k in range(K))
        total += boosted + 6 * divergence * (1.0000001 - p[i, y])
    assert loss_of("mart", model, step) == pytest.approx(total / N)


def test_alp(model: nn.Module, step: TrainingBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_attack(monkeypatch, alp, perturbed(step))
    a, b = logits_of(model, step.x), logits_of(model, perturbed(step))
    rows = np.arange(N)
    ce = [-np.log(softmax(z)[rows, step.y]).mean() for z in (a, b)]
    expected = sum(ce) / 2 + 0.5 * np.square(a - b).mean()
    assert loss_of("alp", model, step) == pytest.approx(expected)


def test_gairat_weighs_images_that_fall_early(
    model: nn.Module, step: TrainingBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    kappa = np.array([0, 1, 4, 10, 7, 5])  # points of ten that are still right

    def attack(
        model: object, step: TrainingBatch, attack: object,
        freeze_samples: Callable[[ModelOutput], None],
    ) -> Tensor:  # fmt: skip
        for turn in range(10):
            is_right = torch.tensor(kappa > turn)
            label = torch.where(is_right, step.y, (step.y + 1) % K)
            logits = nn.functional.one_hot(label, K).double()
            freeze_samples(ModelOutput(logits, logits[:, 0], None))
        return perturbed(step)

    monkeypatch.setattr(gairat, "run_inner_attack", attack)
    each = -np.log(softmax(logits_of(model, perturbed(step)))[np.arange(N), step.y])
    weight = (1 + np.tanh(-1 + 5 * (1 - 2 * kappa / 10))) / 2
    weighted = (each * weight / weight.mean()).mean()
    assert loss_of("gairat", model, step) == pytest.approx(each.mean()), "before the burn-in ends"
    late = replace(step, epoch=60.0)
    assert loss_of("gairat", model, late) == pytest.approx(weighted)
    assert weighted != pytest.approx(each.mean())


def test_fat_stops_at_the_first_mistake_and_later_a_few_steps_after(model: nn.Module) -> None:
    x, _ = images(40)
    x = x.double()
    y = model(x).argmax(1)
    step = TrainingBatch(x, y, NormBall("Linf", 0.03), SampleRNG(0, "train", torch.arange(40)))
    lengths = []
    for epoch in (0.0, 50.0, 90.0):
        watched: list[Tensor] = []

        def attack(*args: object, watched: list[Tensor] = watched, **kwargs: object) -> Tensor:
            watched.append(run_inner_attack(*args, **kwargs))  # type: ignore[arg-type]
            return watched[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fat, "run_inner_attack", attack)
            taken(OBJECTIVES.create("fat", {"rel_step": 0.1}), model, replace(step, epoch=epoch))
        with torch.no_grad():
            z = model(watched[0])
        best = z.scatter(1, y[:, None], -torch.inf).amax(1) - z.gather(1, y[:, None])[:, 0]
        lengths.append(float(best[best > 0].mean()))
    assert lengths[0] < lengths[1] < lengths[2], "how far beyond the border they are"


def test_fast_takes_the_step_of_its_paper(model: Linear, step: TrainingBatch) -> None:
    """On a linear model a step of 1.25 eps from anywhere in the ball, cut by ball and box."""
    seen: list[Tensor] = []
    model.register_forward_hook(lambda module, args, out: seen.append(args[0].detach()))
    loss_of("fast", model, step)
    start, end = seen
    weight = model.weight.detach().view(K, 3, 8, 8)
    with torch.no_grad():
        p = model(start).softmax(1)
    one = nn.functional.one_hot(step.y, K)
    slope = torch.einsum("nk,kchw->nchw", p - one, weight)
    expected = (start + 1.25 * 0.03 * slope.sign()).clamp(step.x - 0.03, step.x + 0.03).clamp(0, 1)
    torch.testing.assert_close(end, expected)
    assert not torch.equal(start, step.x)


class TestSeveralNorms:
    THREATS = ("Linf:0.03", "L2:0.4")

    def fake_attacks(
        self, monkeypatch: pytest.MonkeyPatch, step: TrainingBatch
    ) -> dict[str, Tensor]:
        """Images by norm: Linf is worse for the first half, L2 for the second."""
        other = {"Linf": perturbed(step), "L2": perturbed(step).flip(0)}

        def attack(model: object, step: TrainingBatch, attack: object, threat: NormBall) -> Tensor:
            return other[threat.norm]

        monkeypatch.setattr(multi_norm, "run_inner_attack", attack)
        return other

    def test_max_takes_the_worst_of_each_image(
        self, model: nn.Module, step: TrainingBatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = self.fake_attacks(monkeypatch, step)
        rows = np.arange(N)
        each = [-np.log(softmax(logits_of(model, x))[rows, step.y]) for x in other.values()]
        got = loss_of("multi_norm", model, step, threats=self.THREATS, combine="max")
        assert got == pytest.approx(np.maximum(*each).mean())
        got = loss_of("multi_norm", model, step, threats=self.THREATS, combine="avg")
        assert got == pytest.approx(np.mean(each))

    def test_random_takes_one_norm_per_batch(
        self, model: nn.Module, step: TrainingBatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = self.fake_attacks(monkeypatch, step)
        rows = np.arange(N)
        one = [-np.log(softmax(logits_of(model, x))[rows, step.y]).mean() for x in other.values()]
        drawn = []
        for first in range(20):
            ids = torch.arange(first, first + N)
            here = replace(step, streams=SampleRNG(0, "train/1", ids))
            got = loss_of("multi_norm", model, here, threats=self.THREATS, combine="random")
            drawn.append(int(np.argmin([abs(got - v) for v in one])))
            assert min(abs(got - v) for v in one) < 1e-9
        assert set(drawn) == {0, 1}

    def test_the_balls_warm_up(self, model: nn.Module, step: TrainingBatch) -> None:
        weak = loss_of("multi_norm", model, replace(step, eps_fraction=0.0), threats=self.THREATS)
        plain = loss_of("standard", model, step)
        assert weak == pytest.approx(plain)
        assert loss_of("multi_norm", model, step, threats=self.THREATS) > plain


def test_threads_find_what_one_thread_finds(model: nn.Module) -> None:
    x, _ = images(40)
    y = torch.arange(40) % K
    step = TrainingBatch(
        x.double(), y, NormBall("Linf", 0.03), SampleRNG(0, "train", torch.arange(40))
    )
    objective = OBJECTIVES.create("trades", {})
    before = torch.get_num_threads()
    adversarial = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            adversarial.append(objective.find_adversarial(model, step).x)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*adversarial)
    assert not torch.equal(adversarial[0], step.x)
