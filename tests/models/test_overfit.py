"""Every mini learns 64 photographs by heart, so that no family is silently broken."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from buttress.data import load_dataset
from buttress.models import create_model, list_models

STEPS = 150
WARMUP = 20  # without it a few of the pyramids settle on the mean image and stay there


@pytest.fixture(scope="module")
def photographs(cifar10: None) -> tuple[Tensor, Tensor]:
    data = load_dataset("cifar10", "train", limit=64)
    batch = next(data.batches(64))
    return batch.x, batch.y


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize("name", list_models("mini"))
def test_a_mini_overfits(name: str, photographs: tuple[Tensor, Tensor]) -> None:
    x, y = photographs
    torch.manual_seed(0)
    model = create_model(name, seed=0)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, step / WARMUP)
        loss = cross_entropy(model.train()(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            with torch.no_grad():
                if (model.eval()(x).argmax(1) == y).all():
                    return
    pytest.fail(f"{name} has not learnt 64 images in {STEPS} steps; its loss is {loss.item():.3f}")
