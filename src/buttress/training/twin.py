"""The form of a network in training that attacks see: the same answers in evaluation mode, faster.

Each BatchNorm that follows a convolution is folded into it; a transformer that reads its class
token computes the last block for that token only. The weights change at every step, so the folded
ones are made anew before each attack, which costs far less than one of its passes. What is done
depends on the network alone, never on a measurement: a resumed run computes the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from buttress.attacks.freeze import frozen
from buttress.attacks.last_token import last_token
from buttress.attacks.rewrite import normed
from buttress.interrupt import held
from buttress.training.sync import Synced

BLOCK = 16  # channels of the widest block of a convolution
CLOSE = 1e-3  # logits may differ by this much of their size


class Folded(nn.Module):
    """A convolution with the BatchNorm behind it, both of which stay where they are."""

    def __init__(self, conv: nn.Conv2d, norm: nn.Module) -> None:
        super().__init__()
        self.pair: tuple[Any, Any] = (conv, norm)  # a tuple: these are not modules of this one
        self.weight = conv.weight.detach()
        self.bias: Tensor | None = None

    def refresh(self) -> None:
        conv, norm = self.pair
        scale = (norm.running_var + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight
        shift = -norm.running_mean if conv.bias is None else conv.bias - norm.running_mean
        self.weight = conv.weight * scale.view(-1, 1, 1, 1)
        self.bias = shift * scale if norm.bias is None else torch.addcmul(norm.bias, shift, scale)

    def forward(self, x: Tensor) -> Tensor:
        conv = self.pair[0]
        return F.conv2d(
            x, self.weight, self.bias, conv.stride, conv.padding, conv.dilation, conv.groups
        )


class Twin:
    """The faster form of a model, if there is one."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model, self.form, self.folded = model, model, list[Folded]()
        with frozen(model):
            form = _folded(model) or _shortened(model)
            if form is not None:
                self.form = form
                self.folded = [m for m in form.modules() if isinstance(m, Folded)]
                self._check(x)

    def refreshed(self) -> nn.Module:
        """The form with the weights of now."""
        with torch.no_grad():
            for layer in self.folded:
                layer.refresh()
        return self.form

    def _check(self, x: Tensor) -> None:
        """Drops the form if it does not answer like the model."""
        with torch.no_grad():
            right, found = self.model(x), self.refreshed()(x)
        if not (right - found).norm() <= CLOSE * right.norm():
            self.form, self.folded = self.model, []


def laid_out(model: nn.Module) -> nn.Module:
    """The model with its features stored as convolutions like them, if most of it is those."""
    whole = sum(p.numel() for p in model.parameters())
    wide = [m for m in model.modules() if isinstance(m, nn.Conv2d) and max(m.kernel_size) > 1]
    if 2 * sum(m.weight.numel() for m in wide) <= whole:
        return model
    made: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for layer in made.modules():
        if isinstance(layer, nn.Conv2d) and _is_unsafe(layer):
            layer.weight.data = layer.weight.data.clone(memory_format=torch.contiguous_format)
            layer.register_forward_pre_hook(_plain_input)
    return made


def _is_unsafe(layer: nn.Conv2d) -> bool:
    """Whether the gradient of a layer's weights may destroy memory if pixels are stored whole.

    The library for convolutions on CPUs (oneDNN, up to 3.12 at least) writes past its buffer where
    a kernel of one pixel skips pixels and has fewer channels than a block: 8, or 16 with AVX-512.
    The process crashes later, or goes on with wrong gradients (uxlfoundation/oneDNN, report 6035).
    """
    is_skipping = max(layer.kernel_size) == 1 and max(layer.stride) > 1
    return is_skipping and layer.in_channels // layer.groups < BLOCK


def _plain_input(layer: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    """A copy: with one channel or one pixel `contiguous` would change nothing."""
    return (given[0].clone(memory_format=torch.contiguous_format),)


def _shortened(model: nn.Module) -> nn.Module | None:
    try:
        return last_token(model)
    except ValueError:
        return None


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Synced) or super().is_leaf_module(m, module_qualified_name)


def _folded(model: nn.Module) -> fx.GraphModule | None:
    """The graph of a model whose modules are those of the model itself, but for folded pairs."""
    try:
        with held():
            traced = fx.GraphModule(model, _Tracer().trace(model))
    except Exception:  # a network with branches has no graph; it is attacked as it is
        return None
    found = [p for p in normed(traced, _is_plain_norm) if p[2].padding_mode == "zeros"]
    for number, (before, node, conv, norm) in enumerate(found):
        name = f"folded_{number}"
        traced.add_submodule(name, Folded(conv, norm))
        with traced.graph.inserting_after(node):
            new = traced.graph.call_module(name, before.args, before.kwargs)
        node.replace_all_uses_with(new)
        traced.graph.erase_node(node)
        traced.graph.erase_node(before)
    if not found:
        return None
    traced.recompile()
    return traced


def _is_plain_norm(norm: object) -> bool:
    """A BatchNorm with running statistics and no activation of its own."""
    if type(norm) is nn.BatchNorm2d or (isinstance(norm, Synced) and not hasattr(norm, "act")):
        return norm.track_running_stats
    return False
