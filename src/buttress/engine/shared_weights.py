"""Faster forms of a model in training: other layers on the same weights, the same function.

`attack_form` is for the frozen passes of an inner attack, in evaluation mode; `training_form` is
for the pass whose gradients train the weights. Layers with a method ``refresh`` hold numbers that
follow from the weights and must be called after each change of them.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from buttress.engine.rewrites import (
    StridedConv,
    find_conv_norm_pairs,
    has_slow_gradient,
    read_class_token_only,
    replace_children,
    replace_modules,
)
from buttress.models.sync_batchnorm import CPUSyncBatchNorm
from buttress.system.interrupt import defer_interrupt


def attack_form(model: nn.Module, x: Tensor) -> nn.Module:
    """The form for inner attacks; ``model`` itself if nothing applies."""
    form = replace_modules(_fold_graph(model) or model, _fold_sequential)
    form = replace_modules(form, _replace_norm)
    if x.device.type == "cpu" and x.dtype == torch.float32:
        form = replace_modules(form, _use_strided_gradient)
    return training_form(replace_modules(form, read_class_token_only))


def training_form(model: nn.Module) -> nn.Module:
    """The form whose gradients train the weights; ``model`` itself if nothing applies."""
    form = replace_modules(model, _shorten_without_dropout)
    form = replace_modules(form, _pool_distinct_tokens)
    return replace_modules(form, _use_center_tap)


class FoldedConv(nn.Module):
    """A convolution with the BatchNorm after it folded in; both stay parts of the model."""

    def __init__(self, conv: nn.Conv2d, norm: nn.Module) -> None:
        super().__init__()
        self.pair: tuple[Any, Any] = (conv, norm)  # a tuple: these are not modules of this one
        self.weight = conv.weight.detach()
        self.bias: Tensor | None = None

    def refresh(self) -> None:
        conv, norm = self.pair
        scale, shift = _scale_and_shift(norm)
        self.weight = conv.weight * scale.view(-1, 1, 1, 1)
        self.bias = shift if conv.bias is None else torch.addcmul(shift, conv.bias, scale)

    def forward(self, x: Tensor) -> Tensor:
        conv = self.pair[0]
        return F.conv2d(
            x, self.weight, self.bias, conv.stride, conv.padding, conv.dilation, conv.groups
        )


class AffineNorm(nn.Module):
    """BatchNorm in evaluation mode as one multiplication and addition.

    Scale and shift are stored for every pixel, as large as one image: then the kernel runs over
    whole images, where one of few channels would run over those, at a tenth of the speed.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = (norm,)
        self.maps: tuple[Tensor, Tensor] | None = None

    def refresh(self) -> None:
        self.maps = None

    def forward(self, x: Tensor) -> Tensor:
        maps = self.maps
        if maps is None or maps[0].shape[1:] != x.shape[1:]:
            with torch.no_grad():
                scale, shift = (
                    torch.empty_like(x[:1], dtype=values.dtype).copy_(values.view(1, -1, 1, 1))
                    for values in _scale_and_shift(self.norm[0])
                )
            self.maps = maps = scale, shift
        return torch.addcmul(maps[1], x, maps[0])


def _scale_and_shift(norm: Any) -> tuple[Tensor, Tensor]:
    """Evaluation mode of a BatchNorm: multiply by the first, add the second."""
    scale = (norm.running_var + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight
    shift = -norm.running_mean * scale
    return scale, shift if norm.bias is None else shift + norm.bias


class _SyncNormTracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, CPUSyncBatchNorm) or super().is_leaf_module(m, module_qualified_name)


def _fold_graph(model: nn.Module) -> fx.GraphModule | None:
    """The graph of a model with folded pairs, all other modules its own; None without a pair."""
    try:
        with defer_interrupt():
            traced = fx.GraphModule(model, _SyncNormTracer().trace(model))
    except Exception:  # a model with branches has no graph
        return None
    pairs = [p for p in find_conv_norm_pairs(traced, _is_foldable_norm) if _is_zero_padded(p[2])]
    for number, (conv_node, node, conv, norm) in enumerate(pairs):
        name = f"folded_{number}"
        traced.add_submodule(name, FoldedConv(conv, norm))
        with traced.graph.inserting_after(node):
            folded_node = traced.graph.call_module(name, conv_node.args, conv_node.kwargs)
        node.replace_all_uses_with(folded_node)
        traced.graph.erase_node(node)
        traced.graph.erase_node(conv_node)
    if not pairs:
        return None
    traced.recompile()
    return traced


def _fold_sequential(module: nn.Module) -> nn.Module:
    """Fold pairs of neighbors in a sequence, for models without a graph."""
    if type(module) is not nn.Sequential:
        return module
    folded: dict[str, nn.Module] = {}
    children = list(module.named_children())
    for (conv_name, conv), (norm_name, norm) in pairwise(children):
        if type(conv) is nn.Conv2d and _is_zero_padded(conv) and _is_foldable_norm(norm):
            folded |= {conv_name: FoldedConv(conv, norm), norm_name: nn.Identity()}
    return replace_children(module, folded)


def _replace_norm(module: nn.Module) -> nn.Module:
    return AffineNorm(module) if _is_foldable_norm(module) else module


def _use_strided_gradient(module: nn.Module) -> nn.Module:
    conv: Any = module.pair[0] if isinstance(module, FoldedConv) else module
    return StridedConv(conv, module) if has_slow_gradient(conv) else module


def _is_zero_padded(conv: Any) -> bool:
    return bool(conv.padding_mode == "zeros")


def _is_foldable_norm(norm: object) -> bool:
    """A BatchNorm with running statistics and no activation of its own."""
    if type(norm) is nn.BatchNorm2d or (
        isinstance(norm, CPUSyncBatchNorm) and not hasattr(norm, "act")
    ):
        return norm.track_running_stats
    return False


def _shorten_without_dropout(module: nn.Module) -> nn.Module:
    """The last block for the class token only, where dropout does not draw for all tokens."""
    shortened = read_class_token_only(module)
    if shortened is module:
        return module
    blocks = cast(nn.Sequential, module.blocks)
    draws = any(isinstance(m, nn.Dropout) and m.p > 0 for m in blocks[-1].modules())
    return module if draws else shortened


POOLED_ATTENTION_ATTRIBUTES = ("q", "kv", "num_heads", "head_dim", "attn_drop", "sr", "norm", "act")


def _pool_distinct_tokens(module: nn.Module) -> nn.Module:
    """The linear attention of PVTv2 (timm), which pools keys and values to a map of 7x7."""
    has_layers = all(hasattr(module, name) for name in POOLED_ATTENTION_ATTRIBUTES)
    is_pooled = has_layers and isinstance(getattr(module, "pool", None), nn.AdaptiveAvgPool2d)
    return DistinctTokenAttention(module) if is_pooled else module


class DistinctTokenAttention(nn.Module):
    r"""Attention to keys and values pooled to a map that is larger than the one they come from.

    Pooling a map of 2x2 to 7x7 gives 9 distinct tokens, of 1x1 one token, each many times. With
    :math:`m_j` copies of key j, :math:`\sum_j m_j e^{s_j} v_j / \sum_j m_j e^{s_j}` is attention to
    distinct tokens with :math:`\log m_j` added to the scores.
    """

    attention: Any  # of a shape that `_pool_distinct_tokens` has looked at

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.pools: dict[tuple[int, int], tuple[Tensor, Tensor] | None] = {}

    def forward(self, x: Tensor, feat_size: list[int]) -> Tensor:
        attention, (height, width) = self.attention, feat_size
        pool = self._find_pool(x, height, width)
        if pool is None or attention.attn_drop.p:
            output: Tensor = attention(x, feat_size)
            return output
        (averages, log_counts), (n, tokens, channels) = pool, x.shape
        heads, head_dim = attention.num_heads, attention.head_dim
        q = attention.q(x).view(n, tokens, heads, head_dim).transpose(1, 2)
        pooled = F.linear(averages @ x, attention.sr.weight.flatten(1), attention.sr.bias)
        kv = attention.kv(attention.act(attention.norm(pooled)))
        k, v = kv.view(n, -1, 2, heads, head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=log_counts.expand(tokens, -1))
        attended = attended.transpose(1, 2).reshape(n, tokens, channels)
        output = attention.proj_drop(attention.proj(attended))
        return output

    def _find_pool(self, x: Tensor, height: int, width: int) -> tuple[Tensor, Tensor] | None:
        """(D, H * W) averages of the distinct tokens, and (D,) logs of their numbers of copies.

        None if there are as many tokens as pixels of the pooled map.
        """
        if (height, width) not in self.pools:
            size = int(self.attention.pool.output_size)
            rows, columns = (_pooling_windows(length, size) for length in (height, width))
            averages = torch.kron(rows[0], columns[0])
            counts = torch.kron(rows[1], columns[1])
            is_shorter = len(counts) < size * size
            self.pools[height, width] = (averages, counts.log()) if is_shorter else None
        pool = self.pools[height, width]
        return None if pool is None else (pool[0].to(x), pool[1].to(x))


def _pooling_windows(length: int, size: int) -> tuple[Tensor, Tensor]:
    """(D, length) the distinct averages of adaptive pooling to ``size``, and (D,) their counts."""
    windows = Counter((i * length // size, -(-(i + 1) * length // size)) for i in range(size))
    averages = torch.zeros(len(windows), length)
    for row, (start, end) in zip(averages, windows, strict=True):
        row[start:end] = 1 / (end - start)
    return averages, torch.tensor(list(windows.values()), dtype=averages.dtype)


def _use_center_tap(module: nn.Module) -> nn.Module:
    """Depth-wise convolutions that keep the size of a map."""
    if type(module) is not nn.Conv2d or module.groups != module.in_channels:
        return module
    keeps_size = module.padding == tuple(k // 2 for k in module.kernel_size)
    is_plain = module.out_channels == module.in_channels and set(module.stride) == {1}
    has_center = all(k % 2 for k in module.kernel_size) and set(module.dilation) == {1}
    applies = keeps_size and is_plain and has_center and _is_zero_padded(module)
    return CenterTapConv(module) if applies and max(module.kernel_size) > 1 else module


class CenterTapConv(nn.Module):
    """A depth-wise convolution that multiplies by its center where the map is one pixel."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        conv, (height, width) = self.conv, x.shape[-2:]
        if height * width > 1:
            output: Tensor = conv(x)
            return output
        center = conv.weight[:, 0, conv.kernel_size[0] // 2, conv.kernel_size[1] // 2]
        x = x * center.view(-1, 1, 1)
        return x if conv.bias is None else x + conv.bias.view(-1, 1, 1)
