"""The form of a network that attacks see in training gives its answers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from buttress.engine.fast_model import FoldedConv, Twin, use_channels_last
from buttress.models import create_model
from buttress.models.eval_mode import eval_mode
from conftest import small_net


@pytest.mark.parametrize("name", ["resnet_tiny", "wrn_tiny", "vit_tiny", "mobilevit_tiny"])
def test_it_follows_the_weights(name: str) -> None:
    model = create_model(name, num_classes=10, image_size=32, seed=0).train()
    x = torch.rand(4, 3, 32, 32)
    twin = Twin(model, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        with eval_mode(model), torch.no_grad():
            right, found = model(x), twin.refresh()(x)
        assert (right - found).norm() <= 1e-4 * right.norm()
    assert all(p.requires_grad for p in model.parameters())
    assert len(list(model.parameters())) == len({id(p) for p in model.parameters()})


def test_batchnorm_behind_a_convolution_is_folded() -> None:
    model = small_net()
    twin = Twin(model, torch.rand(2, 3, 8, 8))
    assert len(twin.folded) == 1
    assert not any(isinstance(m, FoldedConv) for m in model.modules()), "the model is left alone"


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) if x.mean() > 0 else self.net(-x)


def test_a_network_without_a_graph_is_attacked_as_it_is() -> None:
    model = Branching()
    assert Twin(model, torch.rand(2, 3, 8, 8)).refresh() is model


def shrinking(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, 5, 1, stride=2),
        nn.Conv2d(5, 32, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2),
    )  # fmt: skip


def test_the_layout_is_not_one_that_destroys_memory_in_training() -> None:
    """A step with few channels before skipped pixels used to corrupt the heap."""
    plain = shrinking(2)
    right, net = copy.deepcopy(plain).double(), use_channels_last(plain)
    x = torch.rand(8, 3, 16, 16)
    for _ in range(20):
        net.zero_grad()
        right.zero_grad()
        net(x).square().sum().backward()
        right(x.double()).square().sum().backward()
    for found, wanted in zip(net.parameters(), right.parameters(), strict=True):
        assert found.grad is not None
        assert wanted.grad is not None
        assert torch.allclose(found.grad.double(), wanted.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("channels", "is_safe"), [(2, False), (7, False), (15, False), (16, True)])
def test_only_what_is_not_safe_keeps_the_plain_layout(channels: int, is_safe: bool) -> None:
    net: Any = use_channels_last(shrinking(channels))
    seen: list[torch.Tensor] = []
    net[2].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    net(torch.rand(2, 3, 8, 8))
    for tensor in (seen[0], net[2].weight):
        assert is_pixel_by_pixel(tensor) == is_safe
    assert is_pixel_by_pixel(net[3].weight)


def is_pixel_by_pixel(x: torch.Tensor) -> bool:
    """Strides tell: a kernel of one pixel is called contiguous in both layouts."""
    return x.stride()[2] == x.shape[3] * x.shape[1]
