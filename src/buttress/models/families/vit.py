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
    Activation,
    initialize_linear_layers,
    initialize_tokens,
    replace_activation,
    scale_residual_branches,
)
from buttress.models.core import MODELS, Factory, ImageSizes

PAPER = "arXiv:2010.11929"

PatchSize = Literal[2, 4, 8, 16]


def default_patch_size(image_size: int) -> PatchSize:
    """The largest patch that leaves a grid of 8x8 tokens or finer: 4 at 32x32, 16 from 128x128."""
    return 16 if image_size >= 128 else 8 if image_size >= 64 else 4


@dataclass(frozen=True)
class ViTConfig:
    """The shape of a ViT; MLPs and the hidden layer of the head are as wide as the tokens."""

    patch: PatchSize
    dim: int = 512
    depth: int = 6
    heads: int = 8
    dropout: float = 0.1
    init: bool = False


def build_vit(
    config: ViTConfig, num_classes: int, image_size: int, in_channels: int, activation: Activation
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
        pos_drop_rate=config.dropout,
        proj_drop_rate=config.dropout,
    )
    net.head = nn.Sequential(
        nn.Linear(config.dim, config.dim),
        nn.GELU(),
        nn.Dropout(config.dropout),
        nn.Linear(config.dim, num_classes),
    )
    if config.init:
        initialize_linear_layers(net)
        scale_residual_branches(net)
        initialize_tokens(net)
    replace_activation(net, "gelu", activation)
    return net


def register_variants(config: ViTConfig) -> Factory:
    """A factory for a plan; the activation and the dropout stay choices."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = "gelu",
        dropout: float = config.dropout,
    ) -> VisionTransformer:
        config_with_options = replace(config, dropout=dropout)
        return build_vit(config_with_options, num_classes, image_size, in_channels, activation)

    return build


def register_variant(
    name: str, plan: ViTConfig, about: str, published: float | None = None
) -> None:
    add = MODELS.register(
        name,
        paper=PAPER,
        tags=("transformer", "vit", "mini" if plan.init else "published"),
        summary=about,
        published=published,
        sizes=ImageSizes(plan.patch, multiple=plan.patch),
    )
    add(register_variants(plan))


register_variant("vit_p8", ViTConfig(patch=8), "six blocks of width 512, patches of 8")
register_variant(
    "vit_p4", ViTConfig(patch=4), "six blocks of width 512, patches of 4", published=9.78
)
register_variant("vit_p2", ViTConfig(patch=2), "six blocks of width 512, patches of 2")

# The three differ in nothing but the patch, so that they can be compared; patches of 2 make four
# times the tokens and about seven times the cost.
VIT_MINI = ViTConfig(patch=4, dim=64, depth=4, heads=4, dropout=0.0, init=True)
register_variant("vit_mini", VIT_MINI, "four blocks of width 64, patches of 4")
register_variant("vit_p8_mini", replace(VIT_MINI, patch=8), "four blocks of width 64, patches of 8")
register_variant("vit_p2_mini", replace(VIT_MINI, patch=2), "four blocks of width 64, patches of 2")


@MODELS.register(
    "vit_tiny",
    paper=PAPER,
    tags=("transformer", "vit", "tiny"),
    published=None,
    sizes=ImageSizes(8, multiple=8),
)
def vit_tiny(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "gelu",
) -> VisionTransformer:
    """ViT with patches of 8: two blocks of width 48."""
    net = VisionTransformer(
        img_size=image_size,
        patch_size=8,
        in_chans=in_channels,
        num_classes=num_classes,
        embed_dim=48,
        depth=2,
        num_heads=4,
        mlp_ratio=2.0,
        qkv_bias=False,
    )
    initialize_linear_layers(net)
    initialize_tokens(net)
    replace_activation(net, "gelu", activation)
    return net
