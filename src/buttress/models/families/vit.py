"""Vision transformer (Dosovitskiy et al., arXiv:2010.11929) on timm, for 32x32 images.

Departure from the network behind the published count: attention is scaled by the width of a head
(64^-0.5), as in the paper, not by the width of the whole (512^-0.5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from timm.models.vision_transformer import VisionTransformer
from torch import nn

from buttress.models.building_blocks import (
    NARROW_TOKENS_INIT,
    Activation,
    InitSteps,
    initialize_linear_layers,
    initialize_tokens,
    replace_activation,
)
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, Variant

PatchSize = Literal[2, 4, 8, 16]


def default_patch_size(image_size: int) -> PatchSize:
    """The largest patch that leaves a grid of 8x8 tokens or finer: 4 at 32x32, 16 from 128x128."""
    return 16 if image_size >= 128 else 8 if image_size >= 64 else 4


@dataclass(frozen=True)
class ViTConfig:
    """The shape of a ViT; the hidden layer of the head is as wide as the tokens."""

    patch: PatchSize | None = None  # None: by the image size
    dim: int = 512
    depth: int = 6
    heads: int = 8
    mlp_ratio: float = 1.0
    qkv_bias: bool = False
    has_positions: bool = True
    has_hidden_head: bool = True
    dropout: float = 0.0
    init: InitSteps = NARROW_TOKENS_INIT
    activation: Activation = "gelu"


def build_vit(config: ViTConfig, shape: InputShape) -> VisionTransformer:
    net = VisionTransformer(
        img_size=shape.image_size,
        patch_size=config.patch or default_patch_size(shape.image_size),
        in_chans=shape.in_channels,
        num_classes=shape.num_classes,
        embed_dim=config.dim,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=config.mlp_ratio,
        qkv_bias=config.qkv_bias,
        pos_embed="learn" if config.has_positions else "none",
        pos_drop_rate=config.dropout,
        proj_drop_rate=config.dropout,
    )
    if config.has_hidden_head:
        net.head = nn.Sequential(
            nn.Linear(config.dim, config.dim),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.dim, shape.num_classes),
        )
    replace_activation(net, "gelu", config.activation)
    return net


VIT_FAMILY = ModelFamily(
    "vit", "arXiv:2010.11929", "transformer", ImageSizes(4, multiple=4), build_vit,
    options=("activation", "dropout"),
)  # fmt: skip
SIZES_P16, SIZES_P8 = ImageSizes(16, multiple=16), ImageSizes(8, multiple=8)
SIZES_P2 = ImageSizes(2, multiple=2)

# The three of a size differ in nothing but the patch, so that they can be compared; patches of 2
# make four times the tokens and about seven times the cost.
VIT = ViTConfig(patch=4, dropout=0.1, init=())
VIT_MINI = ViTConfig(patch=4, dim=64, depth=4, heads=4)

VIT_FAMILY.register(
    Variant("vit_p16", replace(VIT, patch=16),
            "six blocks of width 512, patches of 16, for images of 160 or 224 pixels",
            image_sizes=SIZES_P16),
    Variant("vit_p8", replace(VIT, patch=8), "six blocks of width 512, patches of 8",
            image_sizes=SIZES_P8),
    Variant("vit_p4", VIT, "six blocks of width 512, patches of 4", published=9.78),
    Variant("vit_p2", replace(VIT, patch=2), "six blocks of width 512, patches of 2",
            image_sizes=SIZES_P2),
    Variant("vit_mini", VIT_MINI, "four blocks of width 64, patches of 4"),
    Variant("vit_p8_mini", replace(VIT_MINI, patch=8), "four blocks of width 64, patches of 8",
            image_sizes=SIZES_P8),
    Variant(
        "vit_p2_mini",
        replace(VIT_MINI, patch=2),
        "four blocks of width 64, patches of 2",
        image_sizes=SIZES_P2,
        size_note="differs from vit_mini in nothing but the patch, so that they can be compared",
    ),
    Variant("vit_tiny",
            ViTConfig(patch=8, dim=48, depth=2, heads=4, mlp_ratio=2.0, has_hidden_head=False,
                init=(initialize_linear_layers, initialize_tokens)),
            "ViT with patches of 8: two blocks of width 48.", image_sizes=SIZES_P8,
            options=("activation",)),
)  # fmt: skip
