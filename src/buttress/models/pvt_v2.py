"""Pyramid vision transformer v2 (Wang et al., arXiv:2106.13797) on timm."""

from __future__ import annotations

from timm.models.pvt_v2 import PyramidVisionTransformerV2

from buttress.models.activations import Activation, swap_activation
from buttress.models.core import MODELS, Sizes
from buttress.models.initialise import scale_to_width

PAPER = "arXiv:2106.13797"


@MODELS.register(
    "pvt_v2",
    paper=PAPER,
    tags=("hybrid", "pvt_v2", "published"),
    published=12.40,
    sizes=Sizes(16),
)
def pvt_v2(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "gelu",
) -> PyramidVisionTransformerV2:
    """PVTv2-B1 with linear spatial-reduction attention, patches of 4.

    The ReLU that the linear variant adds before the depth-wise convolution stays a ReLU.
    """
    net = PyramidVisionTransformerV2(
        in_chans=in_channels,
        num_classes=num_classes,
        depths=(2, 2, 2, 2),
        embed_dims=(64, 128, 320, 512),
        num_heads=(1, 2, 5, 8),
        mlp_ratios=(8, 8, 4, 4),
        linear=True,
    )
    swap_activation(net, "gelu", activation)
    return net


@MODELS.register(
    "pvt_v2_tiny",
    paper=PAPER,
    tags=("hybrid", "pvt_v2", "tiny"),
    published=None,
    sizes=Sizes(16),
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
    scale_to_width(net)
    swap_activation(net, "gelu", activation)
    return net
