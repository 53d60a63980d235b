"""Swin transformer (Liu et al., arXiv:2103.14030) on timm: attention in shifted windows.

Up to 64x64 images patches are of 2 and windows of 4 (maps of 16, 8, 4 and 2 for 32x32); above, they
are of 4 and 7 as in the paper. timm's Swin-T is 0.3% larger than the network behind the published
count, which merges patches without a norm, keeps a second stage of 16x16 and shares one table of
relative positions among the heads of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from timm.models.swin_transformer import SwinTransformer

from buttress.models.building_blocks import NARROW_INIT, Activation, InitSteps, replace_activation
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, Variant


@dataclass(frozen=True)
class SwinConfig:
    """Width of the first stage (it doubles from stage to stage), blocks and heads of each."""

    dim: int
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    patch: int = 2  # up to 64x64 images
    init: InitSteps = NARROW_INIT
    activation: Activation = "gelu"


def build_swin(config: SwinConfig, shape: InputShape) -> SwinTransformer:
    is_small = shape.is_small
    net = SwinTransformer(
        img_size=shape.image_size,
        patch_size=config.patch if is_small else 4,
        window_size=4 if is_small else 7,
        in_chans=shape.in_channels,
        num_classes=shape.num_classes,
        embed_dim=config.dim,
        depths=config.depths,
        num_heads=config.heads,
        drop_path_rate=0.0,
    )
    replace_activation(net, "gelu", config.activation)
    return net


SWIN_FAMILY = ModelFamily(
    "swin", "arXiv:2103.14030", "transformer", ImageSizes(32, multiple=32), build_swin
)

SWIN_FAMILY.register(
    Variant("swin", SwinConfig(dim=96, depths=(2, 2, 6, 2), heads=(3, 6, 12, 24), init=()),
            "Swin-T, patches of 2 and windows of 4 up to 64x64 images", published=27.42,
            tolerance=0.015),
    Variant("swin_mini", SwinConfig(dim=12, depths=(2, 2, 6, 2), heads=(1, 2, 4, 8)),
            "2-2-6-2 blocks, widths 12 to 96"),
    Variant("swin_tiny", SwinConfig(dim=16, depths=(2, 2), heads=(1, 2), patch=4),
            "two stages of two blocks, widths 16 and 32, patches of 4; for tests, not Swin-T"),
)  # fmt: skip
