"""What a network costs: parameters and multiply-accumulates, counted on the network itself."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from buttress.models.core import create_model, is_known
from buttress.models.on_paper import Undrawn, tally_macs


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
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    counter = FlopCounterMode(display=False)
    # The counter trips over a view of a trained parameter, such as a class token of CaiT.
    model.eval().requires_grad_(False)
    try:
        # Fused attention is one operator without a count; the plain one is matrix products.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model(x)
    finally:
        for module, training in modes.items():
            module.training = training
        for parameter in trained:
            parameter.requires_grad_(True)
    return int(counter.get_total_flops()) // 2


@lru_cache(maxsize=4096)
def cost_of(
    name: str, *, num_classes: int = 10, image_size: int = 32, in_channels: int = 3
) -> Cost:
    """The cost of a model by name, without memory for its weights."""
    with torch.device("meta"), Undrawn():
        model = create_model(
            name, num_classes=num_classes, image_size=image_size, in_channels=in_channels
        )
    # A network from elsewhere may multiply in ways that only torch's counter knows.
    is_ours = is_known(name)
    macs = tally_macs(model.eval(), image_size) if is_ours else count_macs(model, image_size)
    return Cost(count_parameters(model), macs)
