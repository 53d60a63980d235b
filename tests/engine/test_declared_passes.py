"""The passes that attacks declare are those that are counted."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from buttress.attacks import ATTACKS
from buttress.attacks.core import Attack, create_attack
from buttress.engine.cost import attack_passes
from buttress.engine.options import AttackOptions
from buttress.engine.result import AttackResult
from buttress.engine.run import run_attack
from buttress.models.cost import PassCount
from buttress.threats.core import Threat
from buttress.threats.norm_ball import Norm, NormBall
from conftest import images, norms_of, small_net

EPS: dict[Norm, float] = {"Linf": 0.05, "L2": 0.5, "L1": 4.0}
NUM_CLASSES = 5
EVERY_NORM = [(name, norm) for name in ATTACKS.names() for norm in norms_of(name)]
SHORT = {"steps": 7, "queries": 60, "restarts": 2, "eot_samples": 2, "samples": 3, "targets": 3,
         "angles": 4, "shifts": 3, "refine": 5}  # fmt: skip
SKIPS_STAGES = ("fast",)  # it skips stages for samples that are far from the boundary


class ConfidentModel(nn.Module):
    """A model with a gradient that predicts class 0 everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.flatten(1)
        steps = torch.arange(NUM_CLASSES * pixels.shape[1]).reshape(NUM_CLASSES, -1)
        logits = 1e-3 * pixels @ steps.sin().to(x).T
        return torch.cat([logits[:, :1] + 10, logits[:, 1:]], 1)


def short_attack(name: str, **args: Any) -> Attack:
    known = inspect.signature(ATTACKS.get(name)).parameters
    args = {**{k: v for k, v in SHORT.items() if k in known}, **args}
    if "sources" in known:
        args["sources"] = [ConfidentModel(), ConfidentModel()]
    return create_attack(name, **args)


def run(attack: Attack, model: nn.Module, norm: Norm, *, stop_when_fooled: bool) -> AttackResult:
    x, y = images(3, classes=NUM_CLASSES)
    options = AttackOptions(stop_when_fooled=stop_when_fooled, workers=1)
    labels = torch.zeros_like(y) if isinstance(model, ConfidentModel) else y
    return run_attack(attack, model, x, labels, NormBall(norm, EPS[norm]), options=options)


@pytest.mark.parametrize(("name", "norm"), EVERY_NORM)
def test_a_robust_sample_takes_the_declared_passes(name: str, norm: Norm) -> None:
    attack = short_attack(name)
    result = run(attack, ConfidentModel(), norm, stop_when_fooled=True)
    declared = attack_passes(attack, NormBall(norm, EPS[norm]), NUM_CLASSES)
    counted = torch.stack([result.counter.forward, result.counter.backward]).double()
    assert not result.fooled.any()
    if name in SKIPS_STAGES:
        expected = attack_passes(attack, NormBall(norm, EPS[norm]), NUM_CLASSES, expected=True)
        assert 0 < expected.forward < declared.forward
        assert (counted[0] <= declared.forward).all()
        assert (counted[1] <= declared.backward).all()
    else:
        assert counted.tolist() == [[declared.forward] * 3, [declared.backward] * 3]


OTHERS = [("sparse_pgd", "L0:3"), ("sigma_zero", "L0:3"), ("random_search", "L0:3"),
          ("patch_pgd", "patch:2"), ("random_search", "patch:2"), ("pgd", "patch:2"),
          ("grid", "spatial:30,1"), ("pgd", "flow:0.5"), ("apgd-ce", "jpeg-l1:64"),
          ("square", "fog:64")]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), OTHERS)
def test_declared_passes_of_other_threats(name: str, text: str) -> None:
    attack, threat = short_attack(name), Threat.parse(text)
    x, _ = images(3, classes=NUM_CLASSES)
    options = AttackOptions(stop_when_fooled=True, workers=1)
    labels = torch.zeros(3, dtype=torch.int64)
    result = run_attack(attack, ConfidentModel(), x, labels, threat, options=options)
    declared = attack_passes(attack, threat, NUM_CLASSES)
    assert not result.fooled.any()
    assert result.counter.forward.tolist() == [declared.forward] * 3
    assert result.counter.backward.tolist() == [declared.backward] * 3


@pytest.mark.parametrize("version", ["standard", "plus", "rand"])
@pytest.mark.parametrize("norm", ["Linf", "L1"])
def test_versions_of_autoattack(version: str, norm: Norm) -> None:
    attack = create_attack("autoattack", version=version, steps=4, queries=30)
    result = run(attack, ConfidentModel(), norm, stop_when_fooled=True)
    declared = attack_passes(attack, NormBall(norm, EPS[norm]), NUM_CLASSES)
    assert result.counter.forward.tolist() == [declared.forward] * 3
    assert result.counter.backward.tolist() == [declared.backward] * 3


@pytest.mark.parametrize(("name", "norm"), EVERY_NORM)
def test_no_sample_takes_more(name: str, norm: Norm) -> None:
    attack = short_attack(name)
    declared = attack_passes(attack, NormBall(norm, EPS[norm]), NUM_CLASSES)
    for stop_when_fooled in (True, False):
        result = run(attack, small_net(NUM_CLASSES), norm, stop_when_fooled=stop_when_fooled)
        assert (result.counter.forward <= declared.forward).all()
        assert (result.counter.backward <= declared.backward).all()


def test_passes_of_known_attacks() -> None:
    linf = Threat.parse("Linf:8/255")
    pgd = create_attack("pgd", steps=7, restarts=3)
    assert attack_passes(pgd, linf, 10) == PassCount(1 + 24, 21)
    assert attack_passes(create_attack("noise", samples=10), linf, 10) == PassCount(1 + 10)
    assert attack_passes(create_attack("fab"), linf, 10) == PassCount(1 + 1000, 5000)
    assert attack_passes(create_attack("square"), linf, 10) == PassCount(1 + 5001)
    averaged = replace(create_attack("apgd-ce", steps=5), eot_samples=20)
    assert attack_passes(averaged, linf, 10) == PassCount(20 + 120, 100)
    few, many = (attack_passes(create_attack("autoattack"), linf, n) for n in (3, 10))
    assert few.forward < many.forward
