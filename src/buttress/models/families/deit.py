"""DeiT (Touvron et al., arXiv:2012.12877) on timm: a ViT with MLPs four times as wide.

Patches are of 16 at 224x224 and of 4 at 32x32, as in arXiv:2209.07399, unless `patch` says
otherwise. There is no distillation token.
"""

from __future__ import annotations

from timm.models.vision_transformer import VisionTransformer

from buttress.models.building_blocks import (
    Activation,
    initialize_linear_layers,
    initialize_tokens,
    replace_activation,
    scale_residual_branches,
)
from buttress.models.core import MODELS, ImageSizes
from buttress.models.families.vit import PatchSize, default_patch_size

PAPER = "arXiv:2012.12877"


@MODELS.register(
    "deit_s",
    paper=PAPER,
    tags=("transformer", "deit", "published"),
    published=22.05,
    published_for={"num_classes": 1000, "image_size": 224},
    sizes=ImageSizes(16, multiple=16),
)
def build_deit(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "gelu",
    patch: PatchSize | None = None,
) -> VisionTransformer:
    """DeiT-S: twelve blocks of width 384."""
    net = VisionTransformer(
        img_size=image_size,
        patch_size=patch or default_patch_size(image_size),
        in_chans=in_channels,
        num_classes=num_classes,
        embed_dim=384,
        depth=12,
        num_heads=6,
    )
    replace_activation(net, "gelu", activation)
    return net


@MODELS.register(
    "deit_mini",
    paper=PAPER,
    tags=("transformer", "deit", "mini"),
    published=None,
    sizes=ImageSizes(16, multiple=16),
)
def deit_mini(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "gelu",
    patch: PatchSize | None = None,
) -> VisionTransformer:
    """Five blocks of width 48."""
    net = VisionTransformer(
        img_size=image_size,
        patch_size=patch or default_patch_size(image_size),
        in_chans=in_channels,
        num_classes=num_classes,
        embed_dim=48,
        depth=5,
        num_heads=3,
    )
    initialize_linear_layers(net)
    scale_residual_branches(net)
    initialize_tokens(net)
    replace_activation(net, "gelu", activation)
    return net


@MODELS.register(
    "deit_tiny",
    paper=PAPER,
    tags=("transformer", "deit", "tiny"),
    published=None,
    sizes=ImageSizes(16, multiple=16),
)
def deit_tiny(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "gelu",
) -> VisionTransformer:
    """Two blocks of width 32, patches of 8; for tests, not DeiT-Ti."""
    net = VisionTransformer(
        img_size=image_size,
        patch_size=8,
        in_chans=in_channels,
        num_classes=num_classes,
        embed_dim=32,
        depth=2,
        num_heads=2,
    )
    initialize_linear_layers(net)
    scale_residual_branches(net)
    initialize_tokens(net)
    replace_activation(net, "gelu", activation)
    return net
