"""Other forms of a network compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from buttress.engine.rewrites import (
    ClassTokenBlock,
    GradSwitch,
    StridedConv,
    copy_channels_last,
    freeze_forward,
    shorten_last_block,
    use_strided_gradients,
)
from buttress.models import create_model
from conftest import images


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("padding", [0, 1, 2, 3])
def test_the_gradient_of_a_strided_convolution(kernel: int, stride: int, padding: int) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, kernel, stride, padding).double().requires_grad_(False)
    x = torch.rand(2, 2, 2 * 12, 12, dtype=torch.float64)
    slopes, outs = [], []
    for layer in (conv, StridedConv(conv)):
        point = x.clone().requires_grad_(True)
        out = layer(point)
        outs.append(out.detach())
        slopes.append(torch.autograd.grad((out**3).sum(), point)[0])
    assert torch.equal(*outs)
    torch.testing.assert_close(slopes[1], slopes[0])


def test_sizes_that_the_stride_does_not_divide() -> None:
    conv = nn.Conv2d(3, 4, 3, 2).double().requires_grad_(False)
    x = torch.rand(2, 3, 9, 9, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(StridedConv(conv)(x).square().sum(), x)
    (right,) = torch.autograd.grad(conv(x).square().sum(), x)
    torch.testing.assert_close(slope, right)


def test_only_plain_strided_convolutions_of_few_channels_are_changed() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.Conv2d(16, 8, 3, 2, 1),
        nn.Conv2d(8, 3, 3, 2, 1),
        nn.Conv2d(3, 3, 3, 2, 1, groups=3),
    )
    made = use_strided_gradients(net, images(1)[0])
    assert [type(m) for m in made.children()] == [StridedConv, nn.Conv2d, nn.Conv2d, nn.Conv2d]
    assert type(net[0]) is nn.Conv2d, "the network itself is left alone"
    with pytest.raises(ValueError, match="no strided convolution"):
        use_strided_gradients(nn.Sequential(nn.Conv2d(3, 4, 3)), images(1)[0])


def test_the_frozen_form_serves_passes_without_a_gradient() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    x = images(6)[0]
    net(x)
    net = net.eval().requires_grad_(False)
    two = freeze_forward(use_strided_gradients(net, x), x)
    assert isinstance(two, GradSwitch)
    assert isinstance(next(two.with_grad.children()), StridedConv)
    for count in (6, 1, 4):
        with torch.no_grad():
            torch.testing.assert_close(two(x[:count]), net(x[:count]))
    point = x.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(two(point).square().sum(), point)
    other: Tensor = x.clone().requires_grad_(True)
    (right,) = torch.autograd.grad(net(other).square().sum(), other)
    torch.testing.assert_close(slope, right)


@pytest.mark.parametrize("name", ["vit_tiny", "deit_tiny"])
def test_the_last_block_for_the_class_token_only(name: str) -> None:
    net = create_model(name, num_classes=10, image_size=32).eval().requires_grad_(False).double()
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.1 * torch.randn_like(weight))  # at the start biases are zero
    x = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    made = shorten_last_block(net, x)
    assert any(isinstance(m, ClassTokenBlock) for m in made.modules())
    assert not any(isinstance(m, ClassTokenBlock) for m in net.modules())
    torch.testing.assert_close(made(x), net(x))
    slopes = []
    for form in (net, made):
        point = x.clone().requires_grad_(True)
        slopes.append(torch.autograd.grad(form(point).square().sum(), point)[0])
    torch.testing.assert_close(*slopes)


def test_a_network_that_reads_all_its_tokens_keeps_its_last_block() -> None:
    with pytest.raises(ValueError, match="class token"):
        shorten_last_block(create_model("resnet_tiny", num_classes=10, image_size=32), images(1)[0])


@pytest.mark.parametrize("change", [copy_channels_last, use_strided_gradients])
def test_a_cut_into_patches_is_left_alone(change: Callable[..., nn.Module]) -> None:
    patches, windows = (nn.Sequential(nn.Conv2d(3, 4, kernel, 4)) for kernel in (4, 5))
    with pytest.raises(ValueError, match="there is no"):
        change(patches, images(2)[0])
    change(windows, images(2)[0])
