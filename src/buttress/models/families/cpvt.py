"""CPVT (Chu et al., arXiv:2102.10882): conditional positions on timm's ViT.

No learned positions: after the first block a 3x3 depth-wise convolution over the grid of patches,
added to the tokens (the positional encoding generator, PEG), tells them where they are. The class
token passes by it. Width, depth and head are those of the published count; that the class token is
read, and not an average, the count leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from buttress.models.building_blocks import (
    Activation,
    initialize_linear_layers,
    initialize_tokens,
    replace_activation,
    scale_residual_branches,
)
from buttress.models.core import MODELS, Factory, ImageSizes

PAPER = "arXiv:2102.10882"


class PositionalEncodingGenerator(nn.Module):
    """tokens + depth-wise 3x3 convolution of the tokens on their grid; the class token stays."""

    def __init__(self, dim: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.grid = grid
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        class_token, patches = x[:, :1], x[:, 1:]  # (N, 1, C), (N, H * W, C)
        maps = patches.transpose(1, 2).unflatten(2, self.grid)  # (N, C, H, W)
        patches = patches + self.conv(maps).flatten(2).transpose(1, 2)
        return torch.cat((class_token, patches), dim=1)


class BlockWithPEG(nn.Module):
    """A block of the transformer and the PEG after it."""

    def __init__(self, block: nn.Module, peg: PositionalEncodingGenerator) -> None:
        super().__init__()
        self.block = block
        self.peg = peg

    def forward(self, x: Tensor) -> Tensor:
        return self.peg(self.block(x))


@dataclass(frozen=True)
class CPVTConfig:
    """The shape of a CPVT whose MLPs are as wide as its tokens."""

    patch: int
    dim: int
    depth: int
    heads: int
    dropout: float = 0.0
    init: bool = True


def build_cpvt(
    config: CPVTConfig, num_classes: int, image_size: int, in_channels: int, activation: Activation
) -> VisionTransformer:
    net = VisionTransformer(
        img_size=image_size,
        patch_size=config.patch,
        in_chans=in_channels,
        num_classes=num_classes,
        embed_dim=config.dim,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=1.0,
        qkv_bias=False,
        pos_embed="none",
        pos_drop_rate=config.dropout,
        proj_drop_rate=config.dropout,
    )
    if config.init:
        initialize_linear_layers(net)
        scale_residual_branches(net)
        initialize_tokens(net)
    peg = PositionalEncodingGenerator(config.dim, net.patch_embed.grid_size)
    net.blocks[0] = BlockWithPEG(net.blocks[0], peg)
    replace_activation(net, "gelu", activation)
    return net


def register_variants(config: CPVTConfig) -> Factory:
    """A factory for a plan; the activation and the dropout stay choices."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = "gelu",
        dropout: float = config.dropout,
    ) -> VisionTransformer:
        config_with_options = replace(config, dropout=dropout)
        return build_cpvt(config_with_options, num_classes, image_size, in_channels, activation)

    return build


MODELS.register(
    "cpvt",
    paper=PAPER,
    tags=("hybrid", "cpvt", "published"),
    summary="six blocks of width 512, patches of 4",
    published=9.49,
    sizes=ImageSizes(4, multiple=4),
)(register_variants(CPVTConfig(patch=4, dim=512, depth=6, heads=8, dropout=0.1, init=False)))

MODELS.register(
    "cpvt_mini",
    paper=PAPER,
    tags=("hybrid", "cpvt", "mini"),
    summary="four blocks of width 64, patches of 4",
    published=None,
    sizes=ImageSizes(4, multiple=4),
)(register_variants(CPVTConfig(patch=4, dim=64, depth=4, heads=4)))

MODELS.register(
    "cpvt_tiny",
    paper=PAPER,
    tags=("hybrid", "cpvt", "tiny"),
    summary="two blocks of width 48, patches of 8",
    published=None,
    sizes=ImageSizes(8, multiple=8),
)(register_variants(CPVTConfig(patch=8, dim=48, depth=2, heads=4)))
