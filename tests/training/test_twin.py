"""The form of a network that attacks see in training gives its answers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from buttress.attacks.freeze import frozen
from buttress.models import create_model
from buttress.training.twin import Folded, Twin
from conftest import small_net


@pytest.mark.parametrize("name", ["resnet_tiny", "wrn_tiny", "vit_tiny", "mobilevit_tiny"])
def test_it_follows_the_weights(name: str) -> None:
    model = create_model(name, num_classes=10, image_size=32, seed=0).train()
    x = torch.rand(4, 3, 32, 32)
    twin = Twin(model, x)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        model.train()
        optimiser.zero_grad()
        model(x).square().sum().backward()
        optimiser.step()
        with frozen(model), torch.no_grad():
            right, found = model(x), twin.refreshed()(x)
        assert (right - found).norm() <= 1e-4 * right.norm()
    assert all(p.requires_grad for p in model.parameters())
    assert len(list(model.parameters())) == len({id(p) for p in model.parameters()})


def test_batchnorm_behind_a_convolution_is_folded() -> None:
    model = small_net()
    twin = Twin(model, torch.rand(2, 3, 8, 8))
    assert len(twin.folded) == 1
    assert not any(isinstance(m, Folded) for m in model.modules()), "the model is left alone"


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) if x.mean() > 0 else self.net(-x)


def test_a_network_without_a_graph_is_attacked_as_it_is() -> None:
    model = Branching()
    assert Twin(model, torch.rand(2, 3, 8, 8)).refreshed() is model
