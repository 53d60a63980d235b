"""CaiT (Touvron et al., arXiv:2103.17239) on timm: class attention after the patch blocks.

Blocks of talking-heads attention see patches only; two blocks of class attention at the end read
them into the class token. Patches are of 16 at 224x224 and of 4 at 32x32, as in arXiv:2209.07399,
unless `patch` says otherwise. Layer scales start at 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from timm.models.cait import Cait

from buttress.models.building_blocks import (
    NARROW_TOKENS_INIT,
    Activation,
    InitSteps,
    activation_layer,
)
from buttress.models.core import ImageSizes
from buttress.models.families.vit import PatchSize, default_patch_size
from buttress.models.variants import InputShape, ModelFamily, Variant

# Class attention is a stage of its own.
BLOCK_PATTERN = r"(?P<stage>blocks|blocks_token_only)\.\d+"


@dataclass(frozen=True)
class CaiTConfig:
    """Width, depth without the class attention, and heads; a patch if the size does not decide."""

    dim: int
    depth: int
    heads: int
    patch: PatchSize | None = None
    init: InitSteps = NARROW_TOKENS_INIT
    activation: Activation = "gelu"


def build_cait(config: CaiTConfig, shape: InputShape) -> Cait:
    return Cait(
        img_size=shape.image_size,
        patch_size=config.patch or default_patch_size(shape.image_size),
        in_chans=shape.in_channels,
        num_classes=shape.num_classes,
        embed_dim=config.dim,
        depth=config.depth,
        num_heads=config.heads,
        init_values=1.0,
        act_layer=activation_layer(config.activation),
    )


CAIT_FAMILY = ModelFamily(
    "cait", "arXiv:2103.17239", "transformer", ImageSizes(16, multiple=16), build_cait,
    options=("activation", "patch"), block_pattern=BLOCK_PATTERN,
    published_shape={"num_classes": 1000, "image_size": 224},
)  # fmt: skip

CAIT_FAMILY.register(
    Variant("cait_s12", CaiTConfig(dim=384, depth=12, heads=8, init=()),
            "twelve blocks of width 384, two of class attention", published=25.61, is_rounded=True),
    Variant("cait_mini", CaiTConfig(dim=48, depth=4, heads=4),
            "four blocks of width 48, two of class attention"),
    Variant("cait_tiny", CaiTConfig(dim=32, depth=2, heads=4, patch=8),
            "two blocks of width 32, two of class attention, patches of 8"),
)  # fmt: skip
