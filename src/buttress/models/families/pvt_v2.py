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
    InitSteps,
    initialize_convolutions,
    initialize_linear_layers,
    replace_activation,
    scale_residual_branches,
)
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, Variant


@dataclass(frozen=True)
class PVTv2Config:
    """Widths, heads and blocks of the stages, and the stride of the stem."""

    dims: tuple[int, ...]
    heads: tuple[int, ...]
    depths: tuple[int, ...] = (2, 2, 2, 2)
    mlp_ratios: tuple[int, ...] = (8, 8, 4, 4)
    sr_ratios: tuple[int, ...] = (8, 4, 2, 1)  # strides of keys and values
    linear: bool = True  # keys and values are pooled to 7x7, whatever the strides
    patch: int = 4
    init: InitSteps = (initialize_linear_layers, initialize_convolutions, scale_residual_branches)
    activation: Activation = "gelu"


def build_pvt_v2(config: PVTv2Config, shape: InputShape) -> PyramidVisionTransformerV2:
    net = PyramidVisionTransformerV2(
        in_chans=shape.in_channels,
        num_classes=shape.num_classes,
        depths=config.depths,
        embed_dims=config.dims,
        num_heads=config.heads,
        sr_ratios=config.sr_ratios,
        mlp_ratios=config.mlp_ratios,
        linear=config.linear,
    )
    net.patch_embed.proj.stride = (config.patch, config.patch)
    replace_activation(net, "gelu", config.activation)
    return net


PVT_V2_FAMILY = ModelFamily("pvt_v2", "arXiv:2106.13797", "hybrid", ImageSizes(16), build_pvt_v2)

# The three of a size differ in nothing but the patch, so that they can be compared.
PVT_V2_B1 = PVTv2Config(dims=(64, 128, 320, 512), heads=(1, 2, 5, 8), init=())
PVT_V2_MINI = PVTv2Config(dims=(16, 32, 48, 64), heads=(1, 2, 3, 4))

PVT_V2_FAMILY.register(
    Variant("pvt_v2", PVT_V2_B1, "PVTv2-B1 with linear attention, patches of 4", published=12.40),
    Variant("pvt_v2_p2", replace(PVT_V2_B1, patch=2),
            "PVTv2-B1 with linear attention, patches of 2"),
    Variant("pvt_v2_p1", replace(PVT_V2_B1, patch=1),
            "PVTv2-B1 with linear attention, patches of 1"),
    Variant("pvt_v2_mini", PVT_V2_MINI, "the stages of PVTv2-B1, widths 16 to 64, patches of 4"),
    Variant("pvt_v2_p2_mini", replace(PVT_V2_MINI, patch=2), "widths 16 to 64, patches of 2"),
    Variant("pvt_v2_p1_mini", replace(PVT_V2_MINI, patch=1), "widths 16 to 64, patches of 1",
            size_note="differs from pvt_v2_mini in nothing but the patch"),
    Variant("pvt_v2_tiny",
            PVTv2Config(dims=(16, 32, 48), heads=(1, 2, 3), depths=(1, 1, 1), mlp_ratios=(4, 4, 4),
                sr_ratios=(2, 1, 1), linear=False, init=(initialize_linear_layers,)),
            "Three stages of one block, widths 16 to 48; the first reduces keys and values by 2."),
)  # fmt: skip
