"""Activations by name, and steps that draw the first weights of narrow networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

Activation = Literal["relu", "gelu", "silu"]
InitSteps = tuple[Callable[[Any], None], ...]  # each changes the weights of a network in place

_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def activation_layer(name: Activation) -> type[nn.Module]:
    return _ACTIVATIONS[name]


def mlp(width: int, hidden: int, act: type[nn.Module]) -> nn.Sequential:
    """Two linear layers with an activation between them."""
    return nn.Sequential(nn.Linear(width, hidden), act(), nn.Linear(hidden, width))


def replace_activation(net: nn.Module, old: Activation, new: Activation) -> None:
    """Replace every activation of one kind inside ``net`` by another, in place."""
    if old == new:
        return
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if type(child) is _ACTIVATIONS[old]:
                setattr(parent, name, _ACTIVATIONS[new]())


def initialize_linear_layers(net: nn.Module) -> None:
    """Initialize the weights of linear layers with variance 1 / fan_in.

    The usual standard deviation of 0.02 is made for widths of several hundred; at a width of 48 the
    signal in attention and MLPs is too small for the whole of a short training.
    """
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def initialize_convolutions(net: nn.Module) -> None:
    """Initialize the weights of ungrouped convolutions with variance 1 / fan_in."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and module.groups == 1:
            nn.init.trunc_normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def scale_residual_branches(net: nn.Module) -> None:
    """Scale the N residual branches of a transformer by 1 / sqrt(N) at initialization.

    Unscaled branches let the mean of all images outgrow the differences between them, and at large
    learning rates a narrow model does not recover.
    """
    names_and_layers = net.named_modules()
    outputs = [layer for name, layer in names_and_layers if name.endswith(("attn.proj", ".fc2"))]
    with torch.no_grad():
        for layer in outputs:
            layer.weight.mul_(len(outputs) ** -0.5)


def initialize_tokens(net: VisionTransformer) -> None:
    """Initialize position embeddings at a larger and the patch embedding at a smaller scale.

    A patch embedding with large random weights responds to pixel noise as much as to the image;
    adversarial training of a small model then does not start to learn.
    """
    weight = net.patch_embed.proj.weight
    nn.init.trunc_normal_(weight, std=0.3 * weight[0].numel() ** -0.5)
    for token in (net.pos_embed, net.cls_token):
        if token is not None:
            nn.init.trunc_normal_(token, std=0.5)


# For widths far below those that the usual initialization is made for.
NARROW_INIT: InitSteps = (initialize_linear_layers, scale_residual_branches)
NARROW_TOKENS_INIT: InitSteps = (*NARROW_INIT, initialize_tokens)
