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
from timm.models.vision_transformer import Attention
from torch import Tensor, nn

from buttress.models.building_blocks import (
    Activation,
    InitSteps,
    activation_layer,
    initialize_linear_layers,
    mlp,
)
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, Variant


@dataclass(frozen=True)
class CCTConfig:
    """The shape of a CCT."""

    width: int
    depth: int
    heads: int
    tokenizer_stride: int = 1  # up to 64x64 images
    init: InitSteps = (initialize_linear_layers,)
    dropout: float = 0.0  # of attention, and of branches in the last block (less in those before)
    activation: Activation | None = None  # None: ReLU between tokenizer and pool, GELU in MLPs


class CCTBlock(nn.Module):
    """Attention and an MLP of twice the width."""

    def __init__(self, config: CCTConfig, drop_path: float) -> None:
        super().__init__()
        width = config.width
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, config.heads, attn_drop=config.dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width, 2 * width, activation_layer(config.activation or "gelu"))
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm2(x + self.drop_path(self.attn(self.norm1(x))))
        return x + self.drop_path(self.mlp(x))


class CCT(nn.Module):
    """The network of a configuration, from images to logits."""

    def __init__(self, config: CCTConfig, shape: InputShape) -> None:
        super().__init__()
        self.tokenizer, side = _build_tokenizer(config, shape)
        self.pos_embed = nn.Parameter(torch.empty(1, side**2, config.width))
        last = max(config.depth - 1, 1)
        self.blocks = nn.Sequential(
            *(CCTBlock(config, config.dropout * i / last) for i in range(config.depth))
        )
        self.norm = nn.LayerNorm(config.width)
        self.pool = nn.Linear(config.width, 1)
        self.head = nn.Linear(config.width, shape.num_classes)
        self._initialize()

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokenizer(x).flatten(2).transpose(1, 2) + self.pos_embed
        x = self.norm(self.blocks(x))
        weights = self.pool(x).softmax(1)  # (N, L, 1)
        return self.head((weights * x).sum(1))

    def _initialize(self) -> None:
        nn.init.trunc_normal_(self.pos_embed, std=0.2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def _build_tokenizer(config: CCTConfig, shape: InputShape) -> tuple[nn.Sequential, int]:
    """The convolutions that make tokens, and how many tokens there are in a row."""
    act = activation_layer(config.activation or "relu")
    if shape.is_small:
        kernel, stride, widths = 3, config.tokenizer_stride, [shape.in_channels, config.width]
    else:
        kernel, stride, widths = 7, 2, [shape.in_channels, 64, config.width]
    layers: list[nn.Module] = []
    side = shape.image_size
    for in_width, out_width in pairwise(widths):
        conv = nn.Conv2d(in_width, out_width, kernel, stride, kernel // 2, bias=False)
        layers += [conv, act(), nn.MaxPool2d(3, 2, 1)]
        side = -(-side // (2 * stride))
    return nn.Sequential(*layers), side


CCT_FAMILY = ModelFamily(
    "cct",
    "arXiv:2104.05704",
    "hybrid",
    ImageSizes(8),
    CCT,
    options=("activation", "dropout"),
    components={r"pool\..*": "head"},  # the weighting of tokens
)

CCT_FAMILY.register(
    Variant("cct", CCTConfig(256, 7, heads=4, dropout=0.1, init=()),
            "CCT-7/3x1: seven blocks of width 256 over 16x16 tokens; an activation replaces all.",
            published=3.76),
    Variant("cct_mini", CCTConfig(64, 4, heads=4, tokenizer_stride=2),
            "CCT-4/3x1 of width 64 over 8x8 tokens: the convolution has stride 2."),
    Variant("cct_tiny", CCTConfig(24, 2, heads=2, tokenizer_stride=2),
            "Two blocks of width 24 over 8x8 tokens: the convolution has stride 2.",
            options=("activation",)),
)  # fmt: skip
