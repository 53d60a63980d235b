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

from buttress.models.activations import Activation, swap_activation
from buttress.models.core import MODELS, Factory, Sizes
from buttress.models.initialise import quieten_branches, scale_to_width, spread_tokens

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


class PositionedBlock(nn.Module):
    """A block of the transformer and the PEG after it."""

    def __init__(self, block: nn.Module, peg: PositionalEncodingGenerator) -> None:
        super().__init__()
        self.block = block
        self.peg = peg

    def forward(self, x: Tensor) -> Tensor:
        return self.peg(self.block(x))


@dataclass(frozen=True)
class Plan:
    """The shape of a CPVT whose MLPs are as wide as its tokens."""

    patch: int
    dim: int
    depth: int
    heads: int
    dropout: float = 0.0
    is_narrow: bool = True


def build_cpvt(
    plan: Plan, num_classes: int, image_size: int, in_channels: int, activation: Activation
) -> VisionTransformer:
    net = VisionTransformer(
        img_size=image_size,
        patch_size=plan.patch,
        in_chans=in_channels,
        num_classes=num_classes,
        embed_dim=plan.dim,
        depth=plan.depth,
        num_heads=plan.heads,
        mlp_ratio=1.0,
        qkv_bias=False,
        pos_embed="none",
        pos_drop_rate=plan.dropout,
        proj_drop_rate=plan.dropout,
    )
    if plan.is_narrow:
        scale_to_width(net)
        quieten_branches(net)
        spread_tokens(net)
    peg = PositionalEncodingGenerator(plan.dim, net.patch_embed.grid_size)
    net.blocks[0] = PositionedBlock(net.blocks[0], peg)
    swap_activation(net, "gelu", activation)
    return net


def factory_of(plan: Plan) -> Factory:
    """A factory for a plan; the activation and the dropout stay choices."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = "gelu",
        dropout: float = plan.dropout,
    ) -> VisionTransformer:
        chosen = replace(plan, dropout=dropout)
        return build_cpvt(chosen, num_classes, image_size, in_channels, activation)

    return build


MODELS.register(
    "cpvt",
    paper=PAPER,
    tags=("hybrid", "cpvt", "published"),
    about="six blocks of width 512, patches of 4",
    published=9.49,
    sizes=Sizes(4, multiple=4),
)(factory_of(Plan(patch=4, dim=512, depth=6, heads=8, dropout=0.1, is_narrow=False)))

MODELS.register(
    "cpvt_mini",
    paper=PAPER,
    tags=("hybrid", "cpvt", "mini"),
    about="four blocks of width 64, patches of 4",
    published=None,
    sizes=Sizes(4, multiple=4),
)(factory_of(Plan(patch=4, dim=64, depth=4, heads=4)))

MODELS.register(
    "cpvt_tiny",
    paper=PAPER,
    tags=("hybrid", "cpvt", "tiny"),
    about="two blocks of width 48, patches of 8",
    published=None,
    sizes=Sizes(8, multiple=8),
)(factory_of(Plan(patch=8, dim=48, depth=2, heads=4)))
