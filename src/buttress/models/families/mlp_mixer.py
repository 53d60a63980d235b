"""MLP-Mixer (Tolstikhin et al., arXiv:2105.01601) on timm, for 32x32 images.

MLPs over tokens and MLPs over channels in turn, no attention. timm's network is 1.2% smaller than
the published one, which carries a class token and reads it; here tokens are averaged. Departure
from timm: the head does not start at zero, so that the first gradient reaches the whole network.
"""

from __future__ import annotations

from timm.models.mlp_mixer import MlpMixer
from torch import nn

from buttress.models.building_blocks import (
    Activation,
    activation_layer,
    initialize_linear_layers,
    scale_residual_branches,
)
from buttress.models.core import MODELS, ImageSizes

PAPER = "arXiv:2105.01601"


@MODELS.register(
    "mlp_mixer",
    paper=PAPER,
    tags=("transformer", "mlp_mixer", "published"),
    published=0.68,
    published_within=0.015,
    sizes=ImageSizes(4, multiple=4),
)
def mlp_mixer(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "gelu",
) -> MlpMixer:
    """Eight blocks of width 128, patches of 4; wide token MLPs (512), narrow channel MLPs (64)."""
    net = MlpMixer(
        img_size=image_size,
        patch_size=4,
        in_chans=in_channels,
        num_classes=num_classes,
        num_blocks=8,
        embed_dim=128,
        mlp_ratio=(4.0, 0.5),
        act_layer=activation_layer(activation),
    )
    nn.init.trunc_normal_(net.head.weight, std=0.02)
    return net


@MODELS.register(
    "mlp_mixer_mini",
    paper=PAPER,
    tags=("transformer", "mlp_mixer", "mini"),
    published=None,
    sizes=ImageSizes(4, multiple=4),
)
def mlp_mixer_mini(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "gelu",
) -> MlpMixer:
    """Eight blocks of width 48, patches of 4."""
    net = MlpMixer(
        img_size=image_size,
        patch_size=4,
        in_chans=in_channels,
        num_classes=num_classes,
        num_blocks=8,
        embed_dim=48,
        mlp_ratio=(4.0, 0.5),
        act_layer=activation_layer(activation),
    )
    initialize_linear_layers(net)
    scale_residual_branches(net)
    return net


@MODELS.register(
    "mlp_mixer_tiny",
    paper=PAPER,
    tags=("transformer", "mlp_mixer", "tiny"),
    published=None,
    sizes=ImageSizes(8, multiple=8),
)
def mlp_mixer_tiny(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "gelu",
) -> MlpMixer:
    """Two blocks of width 48, patches of 8."""
    net = MlpMixer(
        img_size=image_size,
        patch_size=8,
        in_chans=in_channels,
        num_classes=num_classes,
        num_blocks=2,
        embed_dim=48,
        mlp_ratio=(4.0, 0.5),
        act_layer=activation_layer(activation),
    )
    initialize_linear_layers(net)
    scale_residual_branches(net)
    return net
