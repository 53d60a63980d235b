"""Adversarial training against any threat model: the inner attack obeys it, and the loss falls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.system.rng import SampleRNG
from buttress.threats import THREATS, Threat
from buttress.threats.parametric import ParametricThreat
from buttress.training import OBJECTIVES
from buttress.training.objectives import TrainingBatch
from conftest import images, small_net

N, SIZE = 24, 12
KINDS = [e.name for e in THREATS if "norm" not in e.tags]
MIXED = ["Linf:0.05", "patch:3", "flow:0.5"]


def threat_of(kind: str) -> Threat:
    return Threat.parse(f"{kind}:{THREATS.get(kind).usual_budget(kind, SIZE)}")


def make_batch(threat: Threat) -> TrainingBatch:
    x, y = images(N, size=SIZE)
    return TrainingBatch(x, y, threat, SampleRNG(0, "train", torch.arange(N)))


def loss_at(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(model.eval()(x), y))


def is_member(threat: Threat, x: Tensor, x_adv: Tensor) -> bool:
    """Whether images obey the threat model, as far as images without parameters tell it."""
    if not isinstance(threat, ParametricThreat):
        return not threat.excess(x, x_adv).any()
    return bool(0 <= float(x_adv.min()) <= float(x_adv.max()) <= 1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_inner_attack_obeys_the_threat_and_raises_the_loss(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threat = threat_of(kind)
    made: list[Tensor] = []
    if isinstance(threat, ParametricThreat):  # remember the parameters of the last images
        apply = type(threat).apply

        def remember(self: ParametricThreat, x: Tensor, points: Tensor) -> Tensor:
            made.append(points.detach())
            return apply(self, x, points)

        monkeypatch.setattr(type(threat), "apply", remember)
    model, batch = small_net(size=SIZE), make_batch(threat)
    objective = OBJECTIVES.create("pgd_at", {"steps": 8})
    x_adv = objective.find_adversarial(model, batch).x
    assert is_member(threat, batch.x, x_adv)
    if made:
        monkeypatch.undo()
        last = made[-1]
        assert not threat.excess(batch.x[-len(last) :], x_adv[-len(last) :], last).any()
    assert (x_adv != batch.x).flatten(1).any(1).all()
    still = OBJECTIVES.create("pgd_at", {"steps": 1, "rel_step": 1e-6})
    random = still.find_adversarial(model, batch).x
    assert loss_at(model, x_adv, batch.y) > loss_at(model, random, batch.y)


CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(("pgd_at", str(threat_of(kind)), {"steps": 3}) for kind in KINDS),
    *(("multi_norm", "Linf:0.05", {"threats": MIXED, "combine": c, "steps": 2})
      for c in ("max", "avg", "random")),
    ("trades", "patch:3", {"steps": 2}),
    ("free", "L0:5", {"repeats": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "threat", "args"), CASES)
def test_the_loss_falls_on_one_batch(name: str, threat: str, args: dict[str, Any]) -> None:
    model, batch = small_net(size=SIZE).train(), make_batch(Threat.parse(threat))
    model[3] = nn.Identity()  # no dropout, so that the loss of two steps can be compared
    objective = OBJECTIVES.create(name, args)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(8):
        adversarial = objective.find_adversarial(model, batch)
        output = objective.loss(model, batch, adversarial)
        optimizer.zero_grad()
        output.loss.backward()
        objective.after_backward(batch, adversarial)
        optimizer.step()
        losses.append(output.loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("combine", ["max", "avg", "random"])
def test_images_of_several_threats_are_in_one_of_them(combine: str) -> None:
    model, batch = small_net(size=SIZE), make_batch(Threat.parse("Linf:0.05"))
    args = {"threats": ["Linf:0.05", "patch:3", "L0:4"], "combine": combine, "steps": 3}
    objective = OBJECTIVES.create("multi_norm", args)
    x_adv = objective.find_adversarial(model, batch).x
    threats = [Threat.parse(text) for text in objective.threats]
    groups = x_adv.split(N)
    assert len(groups) == (3 if combine == "avg" else 1)
    obeyed = [torch.stack([t.excess(batch.x, x) == 0 for t in threats]) for x in groups]
    if combine == "avg":
        assert all(bool(flags[i].all()) for i, flags in enumerate(obeyed))
    elif combine == "random":
        assert bool(obeyed[0].all(1).any())
    else:
        assert bool(obeyed[0].any(0).all())
        losses = [loss_at(model, x, batch.y) for x in (x_adv, batch.x)]
        assert losses[0] > losses[1]


def test_a_warm_up_reaches_patches_too() -> None:
    """A fraction of a side that rounds to nothing leaves the images as they are."""
    model, batch = small_net(size=SIZE), make_batch(Threat.parse("patch:3"))
    objective = OBJECTIVES.create("pgd_at", {"steps": 2})
    weak = replace(batch, threat=Threat.parse("patch:3").scaled(0.1))
    assert torch.equal(objective.find_adversarial(model, weak).x, batch.x)
    half = replace(batch, threat=Threat.parse("patch:3").scaled(0.6))
    x_adv = objective.find_adversarial(model, half).x
    assert not Threat.parse("patch:2").excess(batch.x, x_adv).any()
