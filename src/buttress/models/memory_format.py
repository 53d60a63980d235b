"""Models with features stored channels-last, the layout in which convolutions train faster."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ONEDNN_BLOCK = 16  # channels of the widest block of a convolution


def use_channels_last(model: nn.Module) -> nn.Module:
    """The model with its features stored as convolutions like them, if it passes feature maps."""
    if not _passes_feature_maps(model):
        return model
    converted: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for layer in converted.modules():
        if isinstance(layer, nn.Conv2d) and _has_onednn_overflow(layer):
            layer.weight.data = layer.weight.data.clone(memory_format=torch.contiguous_format)
            layer.register_forward_pre_hook(_contiguous_input)
    return converted


def _passes_feature_maps(model: nn.Module) -> bool:
    """Whether most layers work on maps, not on tokens.

    Measured on a CPU, a step of adversarial training of such models takes 0.65 to 0.97 of its time
    in the other layout; that of models of tokens with some convolutions up to 1.1 (ViTAE, PVTv2).
    """
    layers = list(model.modules())
    convs = sum(isinstance(m, nn.Conv2d) and m.groups == 1 for m in layers)
    batch_norms = sum(isinstance(m, nn.BatchNorm2d) for m in layers)
    return convs > sum(isinstance(m, nn.Linear) for m in layers) or batch_norms > sum(
        isinstance(m, nn.LayerNorm) for m in layers
    )


def _has_onednn_overflow(layer: nn.Conv2d) -> bool:
    """Whether the gradient of a layer's weights may destroy memory if pixels are stored whole.

    The library for convolutions on CPUs (oneDNN, up to 3.12 at least) writes past its buffer where
    a kernel of one pixel skips pixels and has fewer channels than a block: 8, or 16 with AVX-512.
    The process crashes later, or gives wrong gradients (uxlfoundation/oneDNN, report 6035).
    """
    is_skipping = max(layer.kernel_size) == 1 and max(layer.stride) > 1
    return is_skipping and layer.in_channels // layer.groups < ONEDNN_BLOCK


def _contiguous_input(layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """A copy: with one channel or one pixel `contiguous` would change nothing."""
    return (inputs[0].clone(memory_format=torch.contiguous_format),)
