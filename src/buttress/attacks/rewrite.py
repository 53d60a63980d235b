"""Other forms of a network that compute the same, each perhaps faster: `prepare` tries them.

A rewrite returns a new network and leaves the given one alone, or says by an error why it does not
apply.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from buttress.interrupt import held


def fold_batchnorm(model: nn.Module, x: Tensor) -> nn.Module:
    """Each BatchNorm after a convolution that feeds nothing else becomes part of it."""
    if not any(isinstance(m, nn.BatchNorm2d) for m in model.modules()):
        raise ValueError("there is none")
    with held():
        traced = fx.symbolic_trace(copy.deepcopy(model))
    found = normed(traced, lambda norm: type(norm) is nn.BatchNorm2d)
    for before, node, conv, norm in found:
        traced.set_submodule(str(before.target), fuse_conv_bn_eval(conv, norm))
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    if not found:
        raise ValueError("none follows a convolution")
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def normed(
    traced: fx.GraphModule, is_norm: Callable[[object], bool]
) -> list[tuple[fx.Node, fx.Node, Any, Any]]:
    """Convolutions that feed nothing but a norm: both nodes, and both modules."""
    modules, found = dict(traced.named_modules()), []
    for node in traced.graph.nodes:
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or len(before.users) != 1:
            continue
        if node.op != "call_module" or before.op != "call_module":
            continue
        norm, conv = modules[node.target], modules[str(before.target)]
        if is_norm(norm) and type(conv) is nn.Conv2d:
            found.append((before, node, conv, norm))
    return found


def channels_last(model: nn.Module, x: Tensor) -> nn.Module:
    """Weights, and so the features, with the channels of a pixel side by side in memory."""
    if not any(_overlaps(m) for m in model.modules()):
        raise ValueError("there is no convolution but of patches side by side")
    return copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def strided_gradients(model: nn.Module, x: Tensor) -> nn.Module:
    """The gradient of strided convolutions with few inputs as a plain convolution.

    Those are the first of a network, on which libraries are slow: many times the forward pass.
    """
    new = copy.deepcopy(model)
    found = [(name, m) for name, m in new.named_modules() if _is_strided(m)]
    if not found:
        raise ValueError("there is no strided convolution of few channels")
    for name, conv in found:
        new.set_submodule(name, Strided(conv))
    return new


def _overlaps(module: nn.Module) -> bool:
    """Whether it is a convolution whose windows share pixels, not a cut into patches."""
    return isinstance(module, nn.Conv2d) and max(module.kernel_size) > min(module.stride)


FEW = 8  # input channels: with more the library's own gradient is as fast


def _is_strided(m: nn.Module) -> bool:
    if type(m) is not nn.Conv2d or not isinstance(m.padding, tuple) or not _overlaps(m):
        return False
    is_square = len({*m.stride}) == len({*m.padding}) == len({*m.kernel_size}) == 1
    is_plain = m.groups == 1 and set(m.dilation) == {1} and m.padding_mode == "zeros"
    return is_square and is_plain and m.stride[0] > 1 and m.in_channels <= FEW


class Strided(nn.Module):
    r"""A convolution of stride s whose gradient is one convolution of stride 1.

    With :math:`y_i = \sum_u w_u x_{si-p+u}` the gradient of pixel h = sm + a is
    :math:`\sum_t g_{m+t}\, w_{a+p-st}`: for each of the s offsets a another short kernel over g, so
    that one convolution gives all offsets as channels. Offsets that no kernel reaches stay zero.
    """

    kernel: Tensor

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        weight, k, s, p = conv.weight.detach(), conv.kernel_size[0], conv.stride[0], conv.padding[0]
        assert isinstance(p, int)
        reached = {a: [t for t in range(-k, k + p) if 0 <= a + p - s * t < k] for a in range(s)}
        used = [a for a in range(s) if reached[a]]
        first = min(t for a in used for t in reached[a])
        last = max(t for a in used for t in reached[a])
        self.offsets = [(a, b) for a in used for b in used]
        kernel = weight.new_zeros(
            len(self.offsets), conv.in_channels, conv.out_channels, *[last - first + 1] * 2
        )
        for number, (a, b) in enumerate(self.offsets):
            for t, r in ((t, r) for t in reached[a] for r in reached[b]):
                tap = weight[:, :, a + p - s * t, b + p - s * r]
                kernel[number, :, :, t - first, r - first] = tap.T
        self.register_buffer("kernel", kernel.flatten(0, 1), persistent=False)
        self.first, self.last, self.stride = first, last, s

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % self.stride or x.shape[3] % self.stride:
            return self.conv(x)
        return _Strided.apply(x, self)

    def gradient(self, grad: Tensor, shape: torch.Size) -> Tensor:
        """From the gradient of the output to that of an input of this shape."""
        s, (n, channels, *_) = self.stride, shape
        height, width = shape[2] // s, shape[3] // s
        after = max(height - grad.shape[2], width - grad.shape[3]) + self.last
        pad = max(0, -self.first, after)
        start = pad + self.first
        found = F.conv2d(grad, self.kernel, padding=pad)
        found = found[:, :, start : start + height, start : start + width]
        is_all = len(self.offsets) == s * s
        whole = (grad.new_empty if is_all else grad.new_zeros)(n, channels, height, s, width, s)
        for number, (a, b) in enumerate(self.offsets):  # faster than a pixel shuffle
            part = found[:, number * channels : (number + 1) * channels]
            whole[:, :, :, a, :, b] = part
        return whole.view(shape)


class _Strided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Strided) -> Tensor:
        ctx.layer, ctx.shape = layer, x.shape
        return layer.conv(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.layer.gradient(grads[0], ctx.shape), None


def frozen_forward(model: nn.Module, x: Tensor) -> nn.Module:
    """A second form for passes without a gradient: one graph with the weights packed once."""
    if x.device.type != "cpu":
        raise ValueError("it gains only on a processor")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of branches on shapes; `prepare` compares the answers
        plain = _without_strided(getattr(model, "_orig_mod", model))  # what was compiled
        traced = torch.jit.trace(plain, x, check_trace=False)
        quick = torch.jit.optimize_for_inference(torch.jit.freeze(traced.eval()))
    return TwoForms(model, quick)


def _without_strided(model: nn.Module) -> nn.Module:
    """The same with plain convolutions: no graph can hold a gradient of our own."""
    plain = copy.deepcopy(model)
    for name, layer in list(plain.named_modules()):
        if isinstance(layer, Strided):
            plain.set_submodule(name, layer.conv)
    return plain


class TwoForms(nn.Module):
    """One network for passes with a gradient, another for those without."""

    def __init__(self, slope: nn.Module, quick: nn.Module) -> None:
        super().__init__()
        self.slope, self.quick = slope, quick

    def forward(self, x: Tensor) -> Tensor:
        net = self.slope if torch.is_grad_enabled() else self.quick
        return net(x)


class Cast(nn.Module):
    """A network in another floating type, with images and logits in the old one."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = copy.deepcopy(inner).to(dtype), dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.to(self.dtype)).to(x.dtype)


def bfloat16(model: nn.Module, x: Tensor) -> nn.Module:
    """Half the bits; it is only nearly the same network."""
    if x.dtype != torch.float32:
        raise ValueError(f"the images are {x.dtype}")
    return Cast(model.slope if isinstance(model, TwoForms) else model, torch.bfloat16)


def compiled(model: nn.Module, x: Tensor) -> nn.Module:
    """Compiled by torch: fast on accelerators; takes a minute and a C++ compiler on a processor."""
    made: nn.Module = torch.compile(model, dynamic=True)  # type: ignore[assignment]
    return made
