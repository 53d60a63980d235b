"""Escaping the Big Data Paradigm with Compact Transformers (Hassani et al., arXiv:2104.05704).

CCT: a convolution with max-pooling makes the tokens, and a learned weighting of all tokens takes
the place of a class token. The second LayerNorm of a block acts on the stream itself, not on the
input of the MLP alone, as in the authors' code. Up to 64x64 images there is one 3x3 convolution of
stride 1 (CCT-7/3x1, 256 tokens at 32x32); above, the two 7x7 ones of stride 2 with which the
authors train on ImageNet (CCT-7/7x2, 196 tokens at 224x224).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from timm.layers import DropPath
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.models.activations import Activation, activation_layer
from buttress.models.core import MODELS, Sizes
from buttress.models.initialise import scale_to_width

PAPER = "arXiv:2104.05704"
SMALL = 64
PARTS = {r"pool\..*": "head"}  # the weighting of tokens


@dataclass(frozen=True)
class Plan:
    """The shape of a CCT."""

    width: int
    depth: int
    heads: int
    tokenizer_stride: int = 1  # up to 64x64 images
    dropout: float = 0.0  # of attention, and of branches in the last block (less in those before)
    activation: Activation | None = None  # None: ReLU between tokenizer and pool, GELU in MLPs


class Attention(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.heads = plan.heads
        self.dropout = plan.dropout
        self.qkv = nn.Linear(plan.width, 3 * plan.width, bias=False)
        self.proj = nn.Linear(plan.width, plan.width)

    def forward(self, x: Tensor) -> Tensor:  # (N, L, C)
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (N, heads, L, width) each
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        return self.proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and an MLP of twice the width."""

    def __init__(self, plan: Plan, drop_path: float) -> None:
        super().__init__()
        width = plan.width
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(plan)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width),
            activation_layer(plan.activation or "gelu")(),
            nn.Linear(2 * width, width),
        )
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm2(x + self.drop_path(self.attn(self.norm1(x))))
        return x + self.drop_path(self.mlp(x))


class CCT(nn.Module):
    """The network of a plan, from images to logits."""

    def __init__(self, plan: Plan, num_classes: int, image_size: int, in_channels: int) -> None:
        super().__init__()
        self.tokenizer, side = _tokenizer(plan, image_size, in_channels)
        self.pos_embed = nn.Parameter(torch.empty(1, side**2, plan.width))
        last = max(plan.depth - 1, 1)
        self.blocks = nn.Sequential(
            *(Block(plan, plan.dropout * i / last) for i in range(plan.depth))
        )
        self.norm = nn.LayerNorm(plan.width)
        self.pool = nn.Linear(plan.width, 1)
        self.head = nn.Linear(plan.width, num_classes)
        self._initialise()

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokenizer(x).flatten(2).transpose(1, 2) + self.pos_embed
        x = self.norm(self.blocks(x))
        weights = self.pool(x).softmax(1)  # (N, L, 1)
        return self.head((weights * x).sum(1))

    def _initialise(self) -> None:
        nn.init.trunc_normal_(self.pos_embed, std=0.2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def _tokenizer(plan: Plan, image_size: int, in_channels: int) -> tuple[nn.Sequential, int]:
    """The convolutions that make tokens, and how many tokens there are in a row."""
    act = activation_layer(plan.activation or "relu")
    if image_size <= SMALL:
        kernel, stride, widths = 3, plan.tokenizer_stride, [in_channels, plan.width]
    else:
        kernel, stride, widths = 7, 2, [in_channels, 64, plan.width]
    layers: list[nn.Module] = []
    side = image_size
    for inside, outside in pairwise(widths):
        conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)
        layers += [conv, act(), nn.MaxPool2d(3, 2, 1)]
        side = -(-side // (2 * stride))
    return nn.Sequential(*layers), side


@MODELS.register(
    "cct",
    paper=PAPER,
    tags=("hybrid", "cct", "published"),
    published=3.76,
    sizes=Sizes(8),
    components=PARTS,
)
def cct(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation | None = None,
    dropout: float = 0.1,
) -> CCT:
    """CCT-7/3x1: seven blocks of width 256 over 16x16 tokens; an activation replaces all."""
    plan = Plan(256, 7, heads=4, dropout=dropout, activation=activation)
    return CCT(plan, num_classes, image_size, in_channels)


def _narrow(plan: Plan, num_classes: int, image_size: int, in_channels: int) -> CCT:
    net = CCT(plan, num_classes, image_size, in_channels)
    scale_to_width(net)
    return net


@MODELS.register(
    "cct_mini",
    paper=PAPER,
    tags=("hybrid", "cct", "mini"),
    published=None,
    sizes=Sizes(8),
    components=PARTS,
)
def cct_mini(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation | None = None,
    dropout: float = 0.0,
) -> CCT:
    """CCT-4/3x1 of width 64 over 8x8 tokens: the convolution has stride 2."""
    plan = Plan(64, 4, 4, tokenizer_stride=2, dropout=dropout, activation=activation)
    return _narrow(plan, num_classes, image_size, in_channels)


@MODELS.register(
    "cct_tiny",
    paper=PAPER,
    tags=("hybrid", "cct", "tiny"),
    published=None,
    sizes=Sizes(8),
    components=PARTS,
)
def cct_tiny(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation | None = None,
) -> CCT:
    """Two blocks of width 24 over 8x8 tokens: the convolution has stride 2."""
    plan = Plan(24, 2, 2, tokenizer_stride=2, activation=activation)
    return _narrow(plan, num_classes, image_size, in_channels)
