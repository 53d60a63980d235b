"""Channels-last models train as plain ones do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from buttress.models import create_model
from buttress.models.memory_format import use_channels_last


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


@pytest.mark.parametrize(
    ("name", "is_converted"),
    [("resnet_tiny", True), ("poolformer_tiny", True), ("coatnet_cctt_tiny", True),
     ("vit_tiny", False), ("pvt_v2_tiny", False), ("vitae_mini", False)],
)  # fmt: skip
def test_models_of_feature_maps_are_converted(name: str, is_converted: bool) -> None:
    model = use_channels_last(create_model(name, seed=0))
    kernels = [p for p in model.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert any(is_pixel_by_pixel(kernel) for kernel in kernels) == is_converted
