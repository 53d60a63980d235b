"""Pyramid vision transformer v2 (Wang et al., arXiv:2106.13797) on timm.

The published network is PVTv2-B1 with linear spatial-reduction attention: keys and values are
pooled to a 7x7 map. Patches of 2 and 1 take strides from the 7x7 convolution of the stem and change
no parameter. The ReLU that the linear variant adds before its depth-wise convolutions stays a ReLU,
whatever the activation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from timm.models.pvt_v2 import PyramidVisionTransformerV2

from buttress.models.building_blocks import (
    Activation,
    initialize_convolutions,
    initialize_linear_layers,
    replace_activation,
    scale_residual_branches,
)
from buttress.models.core import MODELS, Factory, ImageSizes

PAPER = "arXiv:2106.13797"


@dataclass(frozen=True)
class PVTv2Config:
    """Widths and heads of four stages of two blocks, and the stride of the stem."""

    dims: tuple[int, ...]
    heads: tuple[int, ...]
    patch: int = 4
    init: bool = False


def register_variants(config: PVTv2Config) -> Factory:
    """A factory for a plan; the activation stays a choice."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = "gelu",
    ) -> PyramidVisionTransformerV2:
        net = PyramidVisionTransformerV2(
            in_chans=in_channels,
            num_classes=num_classes,
            depths=(2, 2, 2, 2),
            embed_dims=config.dims,
            num_heads=config.heads,
            mlp_ratios=(8, 8, 4, 4),
            linear=True,
        )
        net.patch_embed.proj.stride = (config.patch, config.patch)
        if config.init:
            initialize_linear_layers(net)
            initialize_convolutions(net)
            scale_residual_branches(net)
        replace_activation(net, "gelu", activation)
        return net

    return build


def register_variant(
    name: str, plan: PVTv2Config, about: str, published: float | None = None
) -> None:
    add = MODELS.register(
        name,
        paper=PAPER,
        tags=("hybrid", "pvt_v2", "mini" if plan.init else "published"),
        summary=about,
        published=published,
        sizes=ImageSizes(16),
    )
    add(register_variants(plan))


PVT_V2_B1 = PVTv2Config(dims=(64, 128, 320, 512), heads=(1, 2, 5, 8))
register_variant(
    "pvt_v2", PVT_V2_B1, "PVTv2-B1 with linear attention, patches of 4", published=12.40
)
register_variant(
    "pvt_v2_p2", replace(PVT_V2_B1, patch=2), "PVTv2-B1 with linear attention, patches of 2"
)
register_variant(
    "pvt_v2_p1", replace(PVT_V2_B1, patch=1), "PVTv2-B1 with linear attention, patches of 1"
)

# The three differ in nothing but the patch, so that they can be compared.
PVT_V2_MINI = PVTv2Config(dims=(16, 32, 48, 64), heads=(1, 2, 3, 4), init=True)
register_variant(
    "pvt_v2_mini", PVT_V2_MINI, "the stages of PVTv2-B1, widths 16 to 64, patches of 4"
)
register_variant("pvt_v2_p2_mini", replace(PVT_V2_MINI, patch=2), "widths 16 to 64, patches of 2")
register_variant("pvt_v2_p1_mini", replace(PVT_V2_MINI, patch=1), "widths 16 to 64, patches of 1")


@MODELS.register(
    "pvt_v2_tiny",
    paper=PAPER,
    tags=("hybrid", "pvt_v2", "tiny"),
    published=None,
    sizes=ImageSizes(16),
)
def pvt_v2_tiny(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "gelu",
) -> PyramidVisionTransformerV2:
    """Three stages of one block, widths 16 to 48; the first reduces keys and values by 2."""
    net = PyramidVisionTransformerV2(
        in_chans=in_channels,
        num_classes=num_classes,
        depths=(1, 1, 1),
        embed_dims=(16, 32, 48),
        num_heads=(1, 2, 3),
        sr_ratios=(2, 1, 1),
        mlp_ratios=(4, 4, 4),
    )
    initialize_linear_layers(net)
    replace_activation(net, "gelu", activation)
    return net
