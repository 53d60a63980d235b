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
    activation_layer,
    initialize_convolutions,
    initialize_linear_layers,
    scale_residual_branches,
)
from buttress.models.core import MODELS, Factory, ImageSizes
from buttress.models.variants import MAX_SMALL_IMAGE

PAPER = "arXiv:2111.11418"


@dataclass(frozen=True)
class PoolFormerConfig:
    """Widths and depths of the stages; narrow networks do without the cautious start."""

    dims: tuple[int, ...]
    depths: tuple[int, ...]
    init: bool = True


def register_variants(config: PoolFormerConfig) -> Factory:
    """A factory for a plan; the activation stays a choice."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = "gelu",
    ) -> MetaFormer:
        net = MetaFormer(
            in_chans=in_channels,
            num_classes=num_classes,
            depths=config.depths,
            dims=config.dims,
            downsample_norm=None,
            mlp_act=activation_layer(activation),
            mlp_bias=True,
            norm_layers=GroupNorm1,
            layer_scale_init_values=1.0 if config.init else 1e-5,
            res_scale_init_values=None,
            use_mlp_head=False,
        )
        if image_size <= MAX_SMALL_IMAGE:
            net.stem.conv = nn.Conv2d(in_channels, config.dims[0], 3, stride=2, padding=1)
            nn.init.trunc_normal_(net.stem.conv.weight, std=0.02)
            nn.init.zeros_(net.stem.conv.bias)
        if config.init:
            initialize_linear_layers(net)
            initialize_convolutions(net)
            scale_residual_branches(net)
        return net

    return build


MODELS.register(
    "poolformer",
    paper=PAPER,
    tags=("transformer", "poolformer", "published"),
    summary="PoolFormer-S12 with a 3x3 stem up to 64x64 images",
    published=11.39,
    sizes=ImageSizes(16),
)(register_variants(PoolFormerConfig(dims=(64, 128, 320, 512), depths=(2, 2, 6, 2), init=False)))

MODELS.register(
    "poolformer_mini",
    paper=PAPER,
    tags=("transformer", "poolformer", "mini"),
    summary="2-2-6-2 blocks, widths 16 to 96; layer scales start at 1",
    published=None,
    sizes=ImageSizes(16),
)(register_variants(PoolFormerConfig(dims=(16, 32, 64, 96), depths=(2, 2, 6, 2))))

MODELS.register(
    "poolformer_tiny",
    paper=PAPER,
    tags=("transformer", "poolformer", "tiny"),
    summary="1-1-2-1 blocks, widths 8 to 32; layer scales start at 1",
    published=None,
    sizes=ImageSizes(16),
)(register_variants(PoolFormerConfig(dims=(8, 16, 24, 32), depths=(1, 1, 2, 1))))
