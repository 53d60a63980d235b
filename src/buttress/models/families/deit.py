"""DeiT (Touvron et al., arXiv:2012.12877) on timm: a ViT with MLPs four times as wide.

Patches are of 16 at 224x224 and of 4 at 32x32, as in arXiv:2209.07399, unless `patch` says
otherwise. There is no distillation token.
"""

from __future__ import annotations

from dataclasses import dataclass

from timm.models.vision_transformer import VisionTransformer

from buttress.models.building_blocks import (
    NARROW_TOKENS_INIT,
    Activation,
    InitSteps,
    replace_activation,
)
from buttress.models.core import ImageSizes
from buttress.models.families.vit import PatchSize, default_patch_size
from buttress.models.variants import ModelFamily, Variant


@dataclass(frozen=True)
class DeiTConfig:
    """Width, depth and heads; a patch if the size does not decide."""

    dim: int
    depth: int
    heads: int
    patch: PatchSize | None = None
    init: InitSteps = NARROW_TOKENS_INIT
    activation: Activation = "gelu"


def build_deit(
    config: DeiTConfig, num_classes: int, image_size: int, in_channels: int
) -> VisionTransformer:
    net = VisionTransformer(
        img_size=image_size,
        patch_size=config.patch or default_patch_size(image_size),
        in_chans=in_channels,
        num_classes=num_classes,
        embed_dim=config.dim,
        depth=config.depth,
        num_heads=config.heads,
    )
    for step in config.init:
        step(net)
    replace_activation(net, "gelu", config.activation)
    return net


DEIT_FAMILY = ModelFamily(
    "deit",
    "arXiv:2012.12877",
    "transformer",
    ImageSizes(16, multiple=16),
    build_deit,
    options=("activation", "patch"),
    published_shape={"num_classes": 1000, "image_size": 224},
)

DEIT_FAMILY.register(
    Variant(
        "deit_s",
        DeiTConfig(dim=384, depth=12, heads=6, init=()),
        "DeiT-S: twelve blocks of width 384.",
        published=22.05,
        is_rounded=True,
    ),
    Variant("deit_mini", DeiTConfig(dim=48, depth=5, heads=3), "Five blocks of width 48."),
    Variant(
        "deit_tiny",
        DeiTConfig(dim=32, depth=2, heads=2, patch=8),
        "Two blocks of width 32, patches of 8; for tests, not DeiT-Ti.",
        options=("activation",),
    ),
)
