"""A transformer that reads its class token alone needs of its last block only that token.

All tokens are keys and values there, but one is the query: the rest of the block is computed for
one token in place of all. `prepare` compares the answers.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

BLOCK = ("norm1", "attn", "ls1", "norm2", "mlp", "ls2")
ATTENTION = ("qkv", "num_heads", "head_dim", "q_norm", "k_norm", "norm", "proj")


def last_token(model: nn.Module, x: Tensor | None = None) -> nn.Module:
    """The last block of each transformer for its class token only; weights are shared."""
    if (new := _changed(model)) is model:
        raise ValueError("no transformer here reads its class token only")
    return new


def _changed(module: nn.Module) -> nn.Module:
    """A shallow copy with other last blocks where there are such inside, else the module itself."""
    children = {name: _changed(child) for name, child in module.named_children()}
    if _reads_one_token(module):
        blocks = copy.copy(module.blocks)
        assert isinstance(blocks, nn.Sequential)
        blocks._modules = {**blocks._modules}
        blocks[-1] = OneToken(blocks[-1])
        children["blocks"] = blocks
    if all(children[name] is child for name, child in module.named_children()):
        return module
    new = copy.copy(module)
    new._modules = {**module._modules, **children}
    return new


def _reads_one_token(module: nn.Module) -> bool:
    blocks = getattr(module, "blocks", None)
    if getattr(module, "global_pool", None) != "token" or not isinstance(blocks, nn.Sequential):
        return False
    attention = getattr(blocks[-1], "attn", None) if len(blocks) else None
    is_known = all(hasattr(blocks[-1], part) for part in BLOCK) and all(
        hasattr(attention, part) for part in ATTENTION
    )
    return is_known and getattr(attention, "gate", None) is None


class OneToken(nn.Module):
    """A block whose output is its first token."""

    block: Any  # of a shape that `last_token` has looked at

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        block, first = self.block, x[:, :1]
        first = first + block.ls1(self._attend(block.norm1(x)))
        moved: Tensor = first + block.ls2(block.mlp(block.norm2(first)))
        return moved

    def _attend(self, x: Tensor) -> Tensor:
        attention, (n, tokens, _) = self.block.attn, x.shape
        heads, width = attention.num_heads, attention.head_dim
        weight, bias = attention.qkv.weight, attention.qkv.bias
        inner = heads * width
        own, other = (None, None) if bias is None else (bias[:inner], bias[inner:])
        q = F.linear(x[:, :1], weight[:inner], own).view(n, 1, heads, width)
        both = F.linear(x, weight[inner:], other).view(n, tokens, 2, heads, width)
        k, v = both.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = attention.q_norm(q.transpose(1, 2)), attention.k_norm(k)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, 1, inner)
        done: Tensor = attention.proj(attention.norm(seen))
        return done
