"""CaiT (Touvron et al., arXiv:2103.17239) on timm: class attention after the patches have settled.

Blocks of talking-heads attention see patches only; two blocks of class attention at the end read
them into the class token. Patches are of 16 at 224x224 and of 4 at 32x32, as in arXiv:2209.07399,
unless `patch` says otherwise. Layer scales start at 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from timm.models.cait import Cait

from buttress.models.building_blocks import (
    Activation,
    activation_layer,
    initialize_linear_layers,
    initialize_tokens,
    scale_residual_branches,
)
from buttress.models.core import MODELS, Factory, ImageSizes
from buttress.models.families.vit import PatchSize, default_patch_size

PAPER = "arXiv:2103.17239"

# Class attention is a stage of its own.
BLOCKS = r"(?P<stage>blocks|blocks_token_only)\.\d+"


@dataclass(frozen=True)
class CaiTConfig:
    """Width, depth without the class attention, and heads; a patch if the size does not decide."""

    dim: int
    depth: int
    heads: int
    patch: PatchSize | None = None
    init: bool = True


def register_variants(config: CaiTConfig) -> Factory:
    """A factory for a plan; the activation and the patch stay choices."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = "gelu",
        patch: PatchSize | None = config.patch,
    ) -> Cait:
        net = Cait(
            img_size=image_size,
            patch_size=patch or default_patch_size(image_size),
            in_chans=in_channels,
            num_classes=num_classes,
            embed_dim=config.dim,
            depth=config.depth,
            num_heads=config.heads,
            init_values=1.0,
            act_layer=activation_layer(activation),
        )
        if config.init:
            initialize_linear_layers(net)
            scale_residual_branches(net)
            initialize_tokens(net)
        return net

    return build


MODELS.register(
    "cait_s12",
    paper=PAPER,
    tags=("transformer", "cait", "published"),
    summary="twelve blocks of width 384, two of class attention",
    published=25.61,
    published_for={"num_classes": 1000, "image_size": 224},
    sizes=ImageSizes(16, multiple=16),
    blocks=BLOCKS,
)(register_variants(CaiTConfig(dim=384, depth=12, heads=8, init=False)))

MODELS.register(
    "cait_mini",
    paper=PAPER,
    tags=("transformer", "cait", "mini"),
    summary="four blocks of width 48, two of class attention",
    published=None,
    sizes=ImageSizes(16, multiple=16),
    blocks=BLOCKS,
)(register_variants(CaiTConfig(dim=48, depth=4, heads=4)))

MODELS.register(
    "cait_tiny",
    paper=PAPER,
    tags=("transformer", "cait", "tiny"),
    summary="two blocks of width 32, two of class attention, patches of 8",
    published=None,
    sizes=ImageSizes(16, multiple=16),
    blocks=BLOCKS,
)(register_variants(CaiTConfig(dim=32, depth=2, heads=4, patch=8)))
