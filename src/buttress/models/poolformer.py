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

from buttress.models.activations import Activation, activation_layer
from buttress.models.core import MODELS, Factory, Sizes
from buttress.models.initialise import quieten_branches, scale_convolutions, scale_to_width
from buttress.models.staged import SMALL

PAPER = "arXiv:2111.11418"


@dataclass(frozen=True)
class Plan:
    """Widths and depths of the stages; narrow networks do without the cautious start."""

    dims: tuple[int, ...]
    depths: tuple[int, ...]
    is_narrow: bool = True


def factory_of(plan: Plan) -> Factory:
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
            depths=plan.depths,
            dims=plan.dims,
            downsample_norm=None,
            mlp_act=activation_layer(activation),
            mlp_bias=True,
            norm_layers=GroupNorm1,
            layer_scale_init_values=1.0 if plan.is_narrow else 1e-5,
            res_scale_init_values=None,
            use_mlp_head=False,
        )
        if image_size <= SMALL:
            net.stem.conv = nn.Conv2d(in_channels, plan.dims[0], 3, stride=2, padding=1)
            nn.init.trunc_normal_(net.stem.conv.weight, std=0.02)
            nn.init.zeros_(net.stem.conv.bias)
        if plan.is_narrow:
            scale_to_width(net)
            scale_convolutions(net)
            quieten_branches(net)
        return net

    return build


MODELS.register(
    "poolformer",
    paper=PAPER,
    tags=("transformer", "poolformer", "published"),
    about="PoolFormer-S12 with a 3x3 stem up to 64x64 images",
    published=11.39,
    sizes=Sizes(16),
)(factory_of(Plan(dims=(64, 128, 320, 512), depths=(2, 2, 6, 2), is_narrow=False)))

MODELS.register(
    "poolformer_mini",
    paper=PAPER,
    tags=("transformer", "poolformer", "mini"),
    about="2-2-6-2 blocks, widths 16 to 96; layer scales start at 1",
    published=None,
    sizes=Sizes(16),
)(factory_of(Plan(dims=(16, 32, 64, 96), depths=(2, 2, 6, 2))))

MODELS.register(
    "poolformer_tiny",
    paper=PAPER,
    tags=("transformer", "poolformer", "tiny"),
    about="1-1-2-1 blocks, widths 8 to 32; layer scales start at 1",
    published=None,
    sizes=Sizes(16),
)(factory_of(Plan(dims=(8, 16, 24, 32), depths=(1, 1, 2, 1))))
