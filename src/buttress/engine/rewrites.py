"""Faster forms of a model: graph and layer rewrites that `FastModel` applies and checks.

A rewrite returns a new module and leaves the given one alone, or raises `NotApplicable`. Whether it
applies depends on layers, device and data type, by rules measured on CPUs (see the page on
performance); on accelerators only rewrites that save operations are used.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from buttress.system.interrupt import defer_interrupt

Rewrite = Callable[[nn.Module, Tensor], nn.Module]


class NotApplicable(ValueError):
    """A rewrite does not apply to a model, or gains nothing on it; the text says why."""


def fold_batchnorm(model: nn.Module, x: Tensor) -> nn.Module:
    """Fold each BatchNorm into the convolution before it, if that feeds nothing else."""
    if not any(isinstance(m, nn.BatchNorm2d) for m in model.modules()):
        raise NotApplicable("the model has no BatchNorm")
    with defer_interrupt():
        traced = fx.symbolic_trace(copy.deepcopy(model))
    pairs = find_conv_norm_pairs(traced, lambda norm: type(norm) is nn.BatchNorm2d)
    for conv_node, node, conv, norm in pairs:
        traced.set_submodule(str(conv_node.target), fuse_conv_bn_eval(conv, norm))
        node.replace_all_uses_with(conv_node)
        traced.graph.erase_node(node)
    if not pairs:
        raise NotApplicable("no BatchNorm follows a convolution")
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def find_conv_norm_pairs(
    traced: fx.GraphModule, is_norm: Callable[[object], bool]
) -> list[tuple[fx.Node, fx.Node, Any, Any]]:
    """Convolutions that feed nothing but a norm: both nodes, and both modules."""
    modules, pairs = dict(traced.named_modules()), []
    for node in traced.graph.nodes:
        conv_node = node.args[0] if node.args else None
        if not isinstance(conv_node, fx.Node) or len(conv_node.users) != 1:
            continue
        if node.op != "call_module" or conv_node.op != "call_module":
            continue
        norm, conv = modules[node.target], modules[str(conv_node.target)]
        if is_norm(norm) and type(conv) is nn.Conv2d:
            pairs.append((conv_node, node, conv, norm))
    return pairs


def copy_channels_last(model: nn.Module, x: Tensor) -> nn.Module:
    """A copy with weights, and so feature maps, in the channels-last memory format."""
    if not any(_has_overlapping_windows(m) for m in model.modules()):
        raise NotApplicable("there is no convolution but of patches side by side")
    return copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def copy_channels_last_on_cpu(model: nn.Module, x: Tensor) -> nn.Module:
    """The same where it is measured to be faster."""
    _check_on_cpu(x)
    return copy_channels_last(model, x)


def use_strided_gradients(model: nn.Module, x: Tensor) -> nn.Module:
    """The input gradient of strided convolutions of few channels as a plain convolution.

    On a CPU those, the first layers of a model, take many times their forward pass.
    """
    _check_on_cpu(x)
    if not any(has_slow_gradient(m) for m in model.modules()):
        raise NotApplicable("there is no strided convolution of few channels")
    rewritten = copy.deepcopy(model)
    convolutions = [(name, m) for name, m in rewritten.named_modules() if has_slow_gradient(m)]
    for name, conv in convolutions:
        rewritten.set_submodule(name, StridedConv(conv))
    return rewritten


def _check_on_cpu(x: Tensor) -> None:
    if x.device.type != "cpu" or x.dtype != torch.float32:
        raise NotApplicable("it is measured to be faster only on a CPU in float32")


def _has_overlapping_windows(module: nn.Module) -> bool:
    """Whether it is a convolution whose windows share pixels, not a cut into patches."""
    return isinstance(module, nn.Conv2d) and max(module.kernel_size) > min(module.stride)


MAX_INPUT_CHANNELS = 4  # with 8 or more the library's own gradient is as fast


def has_slow_gradient(m: nn.Module) -> bool:
    if (
        type(m) is not nn.Conv2d
        or not isinstance(m.padding, tuple)
        or not _has_overlapping_windows(m)
    ):
        return False
    is_square = len({*m.stride}) == len({*m.padding}) == len({*m.kernel_size}) == 1
    is_plain = m.groups == 1 and set(m.dilation) == {1} and m.padding_mode == "zeros"
    return is_square and is_plain and m.stride[0] > 1 and m.in_channels <= MAX_INPUT_CHANNELS


class StridedConv(nn.Module):
    r"""A convolution of stride s whose gradient is one convolution of stride 1.

    With :math:`y_i = \sum_u w_u x_{si-p+u}` the gradient of pixel h = sm + a is
    :math:`\sum_t g_{m+t}\, w_{a+p-st}`: for each of the s offsets a another short kernel over g, so
    that one convolution gives all offsets as channels. Offsets that no kernel reaches stay zero.
    """

    kernel: Tensor
    index: Tensor

    conv: Any  # with the weights in an attribute

    def __init__(self, conv: nn.Conv2d, folded: nn.Module | None = None) -> None:
        """``folded`` computes the convolution with other weights of the same shape, if given."""
        super().__init__()
        self.conv = conv if folded is None else folded
        k, s, p = conv.kernel_size[0], conv.stride[0], conv.padding[0]
        assert isinstance(p, int)
        kernel_taps = {a: [t for t in range(-k, k + p) if 0 <= a + p - s * t < k] for a in range(s)}
        covered_offsets = [a for a in range(s) if kernel_taps[a]]
        first = min(t for a in covered_offsets for t in kernel_taps[a])
        last = max(t for a in covered_offsets for t in kernel_taps[a])
        self.offsets = [(a, b) for a in covered_offsets for b in covered_offsets]
        positions = torch.arange(1, conv.weight.numel() + 1).view(conv.weight.shape)
        index = positions.new_zeros(
            len(self.offsets), conv.in_channels, conv.out_channels, *[last - first + 1] * 2
        )  # 0: no tap of the kernel
        for number, (a, b) in enumerate(self.offsets):
            for t, r in ((t, r) for t in kernel_taps[a] for r in kernel_taps[b]):
                tap = positions[:, :, a + p - s * t, b + p - s * r]
                index[number, :, :, t - first, r - first] = tap.T
        index = index.flatten(0, 1).to(conv.weight.device)
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("kernel", torch.empty(0), persistent=False)
        self.refresh()
        self.first, self.last, self.stride = first, last, s

    def refresh(self) -> None:
        """Compute the kernel of the gradient from the current weights."""
        self.kernel = F.pad(self.conv.weight.detach().flatten(), (1, 0))[self.index]

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % self.stride or x.shape[3] % self.stride:
            output: Tensor = self.conv(x)
            return output
        return _StridedConvFunction.apply(x, self)

    def input_gradient(self, grad: Tensor, shape: torch.Size) -> Tensor:
        """From the gradient of the output to that of an input of this shape."""
        s, (n, channels, *_) = self.stride, shape
        height, width = shape[2] // s, shape[3] // s
        pad_after = max(height - grad.shape[2], width - grad.shape[3]) + self.last
        pad = max(0, -self.first, pad_after)
        start = pad + self.first
        offset_grads = F.conv2d(grad, self.kernel.to(grad.dtype), padding=pad)
        offset_grads = offset_grads[:, :, start : start + height, start : start + width]
        covers_all_offsets = len(self.offsets) == s * s
        grad_input = (grad.new_empty if covers_all_offsets else grad.new_zeros)(
            n, channels, height, s, width, s
        )
        for number, (a, b) in enumerate(self.offsets):  # faster than a pixel shuffle
            offset_grad = offset_grads[:, number * channels : (number + 1) * channels]
            grad_input[:, :, :, a, :, b] = offset_grad
        return grad_input.view(shape)


class _StridedConvFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: StridedConv) -> Tensor:
        ctx.layer, ctx.shape = layer, x.shape
        return layer.conv(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.layer.input_gradient(grads[0], ctx.shape), None


def freeze_forward(model: nn.Module, x: Tensor) -> nn.Module:
    """A second form for passes without a gradient: one graph with the weights packed once."""
    _check_on_cpu(x)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of branches on shapes; `FastModel` compares outputs
        traceable = _restore_plain_convs(getattr(model, "_orig_mod", model))  # what was compiled
        traced = torch.jit.trace(traceable, x, check_trace=False)
        forward_only = torch.jit.optimize_for_inference(torch.jit.freeze(traced.eval()))
    return GradSwitch(model, forward_only)


def _restore_plain_convs(model: nn.Module) -> nn.Module:
    """The same with plain convolutions: no graph can hold a gradient of our own."""
    plain = copy.deepcopy(model)
    for name, layer in list(plain.named_modules()):
        if isinstance(layer, StridedConv):
            plain.set_submodule(name, layer.conv)
    return plain


class GradSwitch(nn.Module):
    """One model for passes with a gradient, another for those without."""

    def __init__(self, with_grad: nn.Module, without_grad: nn.Module) -> None:
        super().__init__()
        self.with_grad, self.without_grad = with_grad, without_grad

    def forward(self, x: Tensor) -> Tensor:
        return (self.with_grad if torch.is_grad_enabled() else self.without_grad)(x)


def compile_model(model: nn.Module, x: Tensor) -> nn.Module:
    """Compiled by torch; on a CPU it takes a minute and a C++ compiler."""
    compiled: nn.Module = torch.compile(model, dynamic=True)  # type: ignore[assignment]
    return compiled


BLOCK_ATTRIBUTES = ("norm1", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2")
ATTENTION_ATTRIBUTES = ("qkv", "num_heads", "head_dim", "q_norm", "k_norm", "norm", "proj")


def shorten_last_block(model: nn.Module, x: Tensor) -> nn.Module:
    """Compute the last block of a transformer for its class token only; weights are shared."""
    if (rewritten := replace_modules(model, read_class_token_only)) is model:
        raise NotApplicable("the model has no transformer that reads its class token only")
    return rewritten


def read_class_token_only(module: nn.Module) -> nn.Module:
    """A transformer with a shorter last block if it reads its class token only, else itself."""
    if not _reads_class_token_only(module):
        return module
    blocks = copy.copy(module.blocks)
    assert isinstance(blocks, nn.Sequential)
    blocks._modules = {**blocks._modules}
    blocks[-1] = ClassTokenBlock(blocks[-1])
    return replace_children(module, {"blocks": blocks})


def replace_modules(module: nn.Module, replacement: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """The module tree with ``replacement`` of each module, children first; weights are shared.

    Modules that hold no replaced one are the given ones; the others are shallow copies.
    """
    children = {name: replace_modules(m, replacement) for name, m in module.named_children()}
    return replacement(replace_children(module, children))


def replace_children(module: nn.Module, children: Mapping[str, nn.Module]) -> nn.Module:
    """A shallow copy with other children; the module itself if they are its own."""
    if all(module._modules[name] is child for name, child in children.items()):
        return module
    rewritten = copy.copy(module)
    rewritten._modules = {**module._modules, **children}
    return rewritten


def _reads_class_token_only(module: nn.Module) -> bool:
    blocks = getattr(module, "blocks", None)
    if getattr(module, "global_pool", None) != "token" or not isinstance(blocks, nn.Sequential):
        return False
    attention = getattr(blocks[-1], "attn", None) if len(blocks) else None
    is_known = all(hasattr(blocks[-1], name) for name in BLOCK_ATTRIBUTES) and all(
        hasattr(attention, name) for name in ATTENTION_ATTRIBUTES
    )
    return is_known and getattr(attention, "gate", None) is None


class ClassTokenBlock(nn.Module):
    """A block whose output is its first token; in training with its stochastic depth."""

    block: Any  # of a shape that `shorten_last_block` has looked at

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        block, class_token = self.block, x[:, :1]
        class_token = class_token + block.drop_path1(block.ls1(self._attend(block.norm1(x))))
        output: Tensor = class_token + block.drop_path2(
            block.ls2(block.mlp(block.norm2(class_token)))
        )
        return output

    def _attend(self, x: Tensor) -> Tensor:
        attention, (n, tokens, _) = self.block.attn, x.shape
        heads, width = attention.num_heads, attention.head_dim
        weight, bias = attention.qkv.weight, attention.qkv.bias
        inner = heads * width
        query_bias, key_value_bias = (None, None) if bias is None else (bias[:inner], bias[inner:])
        q = F.linear(x[:, :1], weight[:inner], query_bias).view(n, 1, heads, width)
        keys_values = F.linear(x, weight[inner:], key_value_bias).view(n, tokens, 2, heads, width)
        k, v = keys_values.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = attention.q_norm(q.transpose(1, 2)), attention.k_norm(k)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, 1, inner)
        output: Tensor = attention.proj(attention.norm(attended))
        return output
