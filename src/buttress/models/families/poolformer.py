"""PoolFormer (Yu et al., arXiv:2111.11418) on timm: average pooling in the place of attention.

Up to 64x64 images the stem is a 3x3 convolution, which the published count asks for; its stride the
count does not decide, and 2 is taken (maps of 16, 8, 4 and 2 for 32x32). Larger images enter
through the 7x7 convolution of stride 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from timm.layers import GroupNorm1
from timm.models.metaformer import MetaFormer
from torch import nn

from buttress.models.building_blocks import (
    Activation,
    InitSteps,
    activation_layer,
    initialize_convolutions,
    initialize_linear_layers,
    scale_residual_branches,
)
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, Variant


@dataclass(frozen=True)
class PoolFormerConfig:
    """Widths and depths of the stages; narrow models omit the small initial layer scale."""

    dims: tuple[int, ...]
    depths: tuple[int, ...]
    layer_scale: float = 1.0
    init: InitSteps = (initialize_linear_layers, initialize_convolutions, scale_residual_branches)
    activation: Activation = "gelu"


def build_poolformer(config: PoolFormerConfig, shape: InputShape) -> MetaFormer:
    net = MetaFormer(
        in_chans=shape.in_channels,
        num_classes=shape.num_classes,
        depths=config.depths,
        dims=config.dims,
        downsample_norm=None,
        mlp_act=activation_layer(config.activation),
        mlp_bias=True,
        norm_layers=GroupNorm1,
        layer_scale_init_values=config.layer_scale,
        res_scale_init_values=None,
        use_mlp_head=False,
    )
    if shape.is_small:
        net.stem.conv = nn.Conv2d(shape.in_channels, config.dims[0], 3, stride=2, padding=1)
        nn.init.trunc_normal_(net.stem.conv.weight, std=0.02)
        nn.init.zeros_(net.stem.conv.bias)
    return net


POOLFORMER_FAMILY = ModelFamily(
    "poolformer", "arXiv:2111.11418", "transformer", ImageSizes(16), build_poolformer,
    attention="none",
)  # fmt: skip

POOLFORMER_FAMILY.register(
    Variant("poolformer",
            PoolFormerConfig((64, 128, 320, 512), (2, 2, 6, 2), layer_scale=1e-5, init=()),
            "PoolFormer-S12 with a 3x3 stem up to 64x64 images", published=11.39),
    Variant("poolformer_mini", PoolFormerConfig((16, 32, 64, 96), (2, 2, 6, 2)),
            "2-2-6-2 blocks, widths 16 to 96; layer scales start at 1"),
    Variant("poolformer_tiny", PoolFormerConfig((8, 16, 24, 32), (1, 1, 2, 1)),
            "1-1-2-1 blocks, widths 8 to 32; layer scales start at 1"),
)  # fmt: skip
