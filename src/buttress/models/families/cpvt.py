"""CPVT (Chu et al., arXiv:2102.10882): conditional positions on timm's ViT.

No learned positions: after the first block a 3x3 depth-wise convolution over the grid of patches,
added to the tokens (the positional encoding generator, PEG), tells them where they are. The class
token passes by it. Width, depth and head are those of the published count; that the class token is
read, and not an average, the count leaves open.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from buttress.models.building_blocks import NARROW_TOKENS_INIT
from buttress.models.core import ImageSizes
from buttress.models.families.vit import ViTConfig, build_vit
from buttress.models.variants import ModelFamily, Variant


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


def add_peg(net: VisionTransformer) -> None:
    """Puts the PEG behind the first block of a ViT, in place."""
    peg = PositionalEncodingGenerator(net.embed_dim, net.patch_embed.grid_size)
    net.blocks[0] = BlockWithPEG(net.blocks[0], peg)


CPVT_FAMILY = ModelFamily(
    "cpvt", "arXiv:2102.10882", "hybrid", ImageSizes(4, multiple=4), build_vit,
    options=("activation", "dropout"),
)  # fmt: skip

CPVT = ViTConfig(patch=4, dropout=0.1, has_positions=False, has_hidden_head=False, init=(add_peg,))
CPVT_MINI = replace(
    CPVT, dim=64, depth=4, heads=4, dropout=0.0, init=(*NARROW_TOKENS_INIT, add_peg)
)

CPVT_FAMILY.register(
    Variant("cpvt", CPVT, "six blocks of width 512, patches of 4", published=9.49),
    Variant("cpvt_p16", replace(CPVT, patch=16),
            "six blocks of width 512, patches of 16, for images of 160 or 224 pixels",
            image_sizes=ImageSizes(16, multiple=16)),
    Variant("cpvt_mini", CPVT_MINI, "four blocks of width 64, patches of 4"),
    Variant("cpvt_tiny", replace(CPVT_MINI, patch=8, dim=48, depth=2),
            "two blocks of width 48, patches of 8", image_sizes=ImageSizes(8, multiple=8)),
)  # fmt: skip
