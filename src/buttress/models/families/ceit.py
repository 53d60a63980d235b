"""Incorporating Convolution Designs into Visual Transformers (Yuan et al., arXiv:2103.11816).

CeiT: tokens are patches of a convolved and pooled image, and the feed-forward part of a block
convolves the grid of tokens (LeFF) while the class token passes by. This is the paper's network
without its layer-wise class-token attention, which the published count leaves no room for. The stem
keeps the paper's two strides of 2 and patches of 4 at every size: 2x2 tokens at 32x32, 14x14 at
224x224. The small variants see 8x8 tokens at 32x32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from timm.models.vision_transformer import Attention
from torch import Tensor, nn

from buttress.models.building_blocks import Activation, activation_layer
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, Variant


@dataclass(frozen=True)
class CeiTConfig:
    """The shape of a CeiT."""

    width: int
    depth: int
    heads: int
    stem_channels: int = 32
    stem_kernel: int = 7
    stem_stride: int = 2
    patch: int = 4
    # Only the class token is read, and the last LeFF does not change it: it can be left out.
    has_last_leff: bool = True
    activation: Activation = "gelu"


class CeiTStem(nn.Module):
    """Image to tokens: convolution, norm, max-pooling, patches."""

    def __init__(self, config: CeiTConfig, in_channels: int) -> None:
        super().__init__()
        kernel, channels = config.stem_kernel, config.stem_channels
        # One pixel more than usual: pooling without padding then ends at an even fraction.
        self.conv = nn.Conv2d(in_channels, channels, kernel, config.stem_stride, kernel // 2 + 1)
        self.norm = nn.BatchNorm2d(channels)
        self.pool = nn.MaxPool2d(3, 2)
        self.patches = nn.PixelUnshuffle(config.patch)
        self.proj = nn.Linear(channels * config.patch**2, config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(self.pool(self.norm(self.conv(x))))
        return self.proj(x.flatten(2).transpose(1, 2))  # (N, L, C)


class LeFF(nn.Module):
    """Locally enhanced feed-forward: an MLP with a depth-wise 3x3 convolution of the token grid."""

    def __init__(self, config: CeiTConfig, side: int) -> None:
        super().__init__()
        act, hidden = activation_layer(config.activation), 4 * config.width
        self.side = side
        self.expand = nn.Linear(config.width, hidden)
        self.norm1 = nn.BatchNorm2d(hidden)
        self.act1 = act()
        self.depthwise = nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden, bias=False)
        self.norm2 = nn.BatchNorm2d(hidden)
        self.act2 = act()
        self.project = nn.Linear(hidden, config.width)
        self.norm3 = nn.BatchNorm2d(config.width)
        self.act3 = act()

    def forward(self, x: Tensor) -> Tensor:  # (N, L, C)
        grid = self.act1(self.norm1(self._grid(self.expand(x))))
        grid = self.act2(self.norm2(self.depthwise(grid)))
        x = self.project(grid.flatten(2).transpose(1, 2))
        return self.act3(self.norm3(self._grid(x))).flatten(2).transpose(1, 2)

    def _grid(self, x: Tensor) -> Tensor:
        """(N, C, H, W); without a copy this is channels-last, which BatchNorm takes fastest."""
        return x.transpose(1, 2).unflatten(2, (self.side, self.side))


class CeiTBlock(nn.Module):
    """Attention over all tokens, then LeFF on those of the image."""

    def __init__(self, config: CeiTConfig, side: int, has_leff: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attn = Attention(config.width, config.heads)
        self.has_leff = has_leff
        if has_leff:
            self.norm2 = nn.LayerNorm(config.width)
            self.leff = LeFF(config, side)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        if not self.has_leff:
            return x
        class_token, tokens = x[:, :1], x[:, 1:]
        return torch.cat((class_token, tokens + self.leff(self.norm2(tokens))), 1)


class CeiT(nn.Module):
    """The network of a configuration, from images to logits."""

    def __init__(self, config: CeiTConfig, shape: InputShape) -> None:
        super().__init__()
        side = shape.image_size // (2 * config.stem_stride * config.patch)
        self.stem = CeiTStem(config, shape.in_channels)
        self.cls_token = nn.Parameter(torch.randn(1, 1, config.width))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + side**2, config.width))
        last = config.depth - 1
        self.blocks = nn.Sequential(
            *(
                CeiTBlock(config, side, i < last or config.has_last_leff)
                for i in range(config.depth)
            )
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, shape.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x)
        class_token = self.cls_token.expand(len(x), -1, -1)
        x = torch.cat((class_token, tokens), 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x)[:, 0]))


CEIT_FAMILY = ModelFamily("ceit", "arXiv:2103.11816", "hybrid", ImageSizes(16, multiple=16), CeiT)

CEIT_FAMILY.register(
    Variant("ceit", CeiTConfig(192, 12, heads=3),
            "CeiT-T: twelve blocks of width 192 over 2x2 tokens and a class token.",
            published=5.56),
    Variant("ceit_mini", CeiTConfig(48, 4, 3, 12, 3, stem_stride=1, patch=2, has_last_leff=False),
            "Four blocks of width 48 over 8x8 tokens: 3x3 stem of stride 1, pooling, patches of 2.",
            image_sizes=ImageSizes(8, multiple=4)),
    Variant(
        "ceit_tiny",
        CeiTConfig(36, 3, 3, 12, 3, stem_stride=2, patch=2, has_last_leff=False),
        "Three blocks of width 36 over 4x4 tokens: 3x3 stem of stride 2, pooling, patches of 2.",
        image_sizes=ImageSizes(16, multiple=8),
    ),
)  # fmt: skip
