"""The contract of every registered objective, as its class and its registration declare it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from buttress.system.rng import SampleRNG
from buttress.threats import Threat
from buttress.training import OBJECTIVES
from buttress.training.objectives import TrainingBatch
from buttress.training.objectives.core import example_args
from conftest import images, small_net, taken

N = 16
CASES = [
    *((name, {}) for name in OBJECTIVES.names()),
    *((name, example_args(name)) for name in OBJECTIVES.names() if example_args(name)),
    ("alp", {"target": "random"}),
    ("multi_norm", {"combine": "random"}),
    ("pgd_at", {"steps": 3}),
]
THREATS_OF_CASES = ("Linf:0.05", "patch:3", "flow:0.5")  # boxes, unions of boxes, parameters


def make_batch(threat: str = "Linf:0.05") -> TrainingBatch:
    x, y = images(N)
    return TrainingBatch(x, y, Threat.parse(threat), SampleRNG(0, "train", torch.arange(N)))


@pytest.mark.parametrize("name", OBJECTIVES.names())
def test_the_loss_is_finite_and_falls_on_one_batch(name: str) -> None:
    model, batch = small_net().train(), make_batch()
    model[3] = nn.Identity()  # no dropout, so that the loss of two steps can be compared
    objective = OBJECTIVES.create(name, example_args(name))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(8):
        adversarial = objective.find_adversarial(model, batch)
        output = objective.loss(model, batch, adversarial)
        assert output.loss.isfinite()
        assert output.logits.shape == (N, 10)
        optimizer.zero_grad()
        output.loss.backward()
        objective.after_backward(batch, adversarial)
        optimizer.step()
        losses.append(output.loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("name", "args"), CASES)
def test_batchnorm_is_updated_as_often_as_declared(name: str, args: dict[str, Any]) -> None:
    model, objective = small_net().train(), OBJECTIVES.create(name, args)
    taken(objective, model, make_batch())
    norm: Any = model[1]
    assert int(norm.num_batches_tracked) == objective.batchnorm_updates
    assert all(m.training for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("threat", THREATS_OF_CASES)
@pytest.mark.parametrize(("name", "args"), CASES)
def test_passes_are_as_many_as_declared(name: str, args: dict[str, Any], threat: str) -> None:
    if name == "free" and threat.startswith("flow"):
        pytest.skip("it keeps changes of pixels")
    model, objective = small_net().train(), OBJECTIVES.create(name, args)
    passes: Counter[str] = Counter()  # of single images; attacks use evaluation mode

    def count(module: nn.Module, _: object, logits: Tensor) -> None:
        part = "loss" if module.training else "attack"
        passes[f"{part} forward"] += len(logits)
        if logits.requires_grad:
            logits.register_hook(lambda grad: passes.update({f"{part} backward": len(grad)}))

    model.register_forward_hook(count)
    taken(objective, model, make_batch(threat)).loss.backward()
    expected = {
        "attack forward": objective.attack_passes.forward,
        "attack backward": objective.attack_passes.backward,
        "loss forward": objective.loss_passes,
        "loss backward": objective.loss_passes,
    }
    assert {part: passes[part] / N for part in expected} == expected
