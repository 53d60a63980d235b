"""The plain activation of a network, by name, for families that offer the choice."""

from __future__ import annotations

from typing import Literal

from torch import nn

Activation = Literal["relu", "gelu", "silu"]

_LAYERS: dict[Activation, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


def activation_layer(name: Activation) -> type[nn.Module]:
    return _LAYERS[name]


def swap_activation(net: nn.Module, old: Activation, new: Activation) -> None:
    """Replaces every activation of one kind inside ``net`` by another, in place."""
    if old == new:
        return
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if type(child) is _LAYERS[old]:
                setattr(parent, name, _LAYERS[new]())
