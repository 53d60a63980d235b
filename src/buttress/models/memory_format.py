"""Models with features stored channels-last, the layout in which convolutions train faster."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ONEDNN_BLOCK = 16  # channels of the widest block of a convolution


def use_channels_last(model: nn.Module) -> nn.Module:
    """The model with its features stored as convolutions like them, if most of it is those."""
    num_parameters = sum(p.numel() for p in model.parameters())
    spatial_convs = [
        m for m in model.modules() if isinstance(m, nn.Conv2d) and max(m.kernel_size) > 1
    ]
    if 2 * sum(m.weight.numel() for m in spatial_convs) <= num_parameters:
        return model
    converted: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for layer in converted.modules():
        if isinstance(layer, nn.Conv2d) and _has_onednn_overflow(layer):
            layer.weight.data = layer.weight.data.clone(memory_format=torch.contiguous_format)
            layer.register_forward_pre_hook(_contiguous_input)
    return converted


def _has_onednn_overflow(layer: nn.Conv2d) -> bool:
    """Whether the gradient of a layer's weights may destroy memory if pixels are stored whole.

    The library for convolutions on CPUs (oneDNN, up to 3.12 at least) writes past its buffer where
    a kernel of one pixel skips pixels and has fewer channels than a block: 8, or 16 with AVX-512.
    The process crashes later, or goes on with wrong gradients (uxlfoundation/oneDNN, report 6035).
    """
    is_skipping = max(layer.kernel_size) == 1 and max(layer.stride) > 1
    return is_skipping and layer.in_channels // layer.groups < ONEDNN_BLOCK


def _contiguous_input(layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """A copy: with one channel or one pixel `contiguous` would change nothing."""
    return (inputs[0].clone(memory_format=torch.contiguous_format),)
