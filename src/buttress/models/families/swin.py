"""Swin transformer (Liu et al., arXiv:2103.14030) on timm: attention in shifted windows.

Up to 64x64 images patches are of 2 and windows of 4 (maps of 16, 8, 4 and 2 for 32x32); above, they
are of 4 and 7 as in the paper. timm's Swin-T is 0.3% larger than the network behind the published
count, which merges patches without a norm, keeps a second stage of 16x16 and shares one table of
relative positions among the heads of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from timm.models.swin_transformer import SwinTransformer

from buttress.models.building_blocks import (
    Activation,
    initialize_linear_layers,
    replace_activation,
    scale_residual_branches,
)
from buttress.models.core import MODELS, Factory, ImageSizes
from buttress.models.variants import MAX_SMALL_IMAGE

PAPER = "arXiv:2103.14030"


@dataclass(frozen=True)
class SwinConfig:
    """Width of the first stage (it doubles from stage to stage), blocks and heads of each."""

    dim: int
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    patch: int = 2  # up to 64x64 images
    init: bool = True


def register_variants(config: SwinConfig) -> Factory:
    """A factory for a plan; the activation stays a choice."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = "gelu",
    ) -> SwinTransformer:
        is_small = image_size <= MAX_SMALL_IMAGE
        net = SwinTransformer(
            img_size=image_size,
            patch_size=config.patch if is_small else 4,
            window_size=4 if is_small else 7,
            in_chans=in_channels,
            num_classes=num_classes,
            embed_dim=config.dim,
            depths=config.depths,
            num_heads=config.heads,
            drop_path_rate=0.0,
        )
        if config.init:
            initialize_linear_layers(net)
            scale_residual_branches(net)
        replace_activation(net, "gelu", activation)
        return net

    return build


MODELS.register(
    "swin",
    paper=PAPER,
    tags=("transformer", "swin", "published"),
    summary="Swin-T, patches of 2 and windows of 4 up to 64x64 images",
    published=27.42,
    published_within=0.015,
    sizes=ImageSizes(32, multiple=32),
)(register_variants(SwinConfig(dim=96, depths=(2, 2, 6, 2), heads=(3, 6, 12, 24), init=False)))

MODELS.register(
    "swin_mini",
    paper=PAPER,
    tags=("transformer", "swin", "mini"),
    summary="2-2-6-2 blocks, widths 12 to 96",
    published=None,
    sizes=ImageSizes(32, multiple=32),
)(register_variants(SwinConfig(dim=12, depths=(2, 2, 6, 2), heads=(1, 2, 4, 8))))

MODELS.register(
    "swin_tiny",
    paper=PAPER,
    tags=("transformer", "swin", "tiny"),
    summary="two stages of two blocks, widths 16 and 32, patches of 4; for tests, not Swin-T",
    published=None,
    sizes=ImageSizes(32, multiple=32),
)(register_variants(SwinConfig(dim=16, depths=(2, 2), heads=(1, 2), patch=4)))
