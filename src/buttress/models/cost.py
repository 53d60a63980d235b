"""What a network costs: parameters and multiply-accumulates, counted on the network itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from buttress.models.core import create_model


class Cost(NamedTuple):
    parameters: int
    macs: int  # per image, forward


def count_parameters(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def count_macs(model: nn.Module, image_size: int = 32) -> int:
    """Multiply-accumulates of one forward pass of one image: half of what torch calls FLOPs."""
    first = next(model.parameters())
    channels = getattr(model, "in_channels", 3)
    x = torch.zeros(1, channels, image_size, image_size, device=first.device, dtype=first.dtype)
    modes = {module: module.training for module in model.modules()}
    counter = FlopCounterMode(display=False)
    model.eval()
    try:
        # Fused attention is one operator without a count; the plain one is matrix products.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model(x)
    finally:
        for module, training in modes.items():
            module.training = training
    return int(counter.get_total_flops()) // 2


def cost_of(
    name: str, *, num_classes: int = 10, image_size: int = 32, in_channels: int = 3
) -> Cost:
    """The cost of a model by name, without memory for its weights."""
    with torch.device("meta"):
        model = create_model(
            name, num_classes=num_classes, image_size=image_size, in_channels=in_channels
        )
    return Cost(count_parameters(model), count_macs(model, image_size))
