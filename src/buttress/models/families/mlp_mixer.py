"""MLP-Mixer (Tolstikhin et al., arXiv:2105.01601) on timm, for 32x32 images.

MLPs over tokens and MLPs over channels in turn, no attention. timm's network is 1.2% smaller than
the published one, which carries a class token and reads it; here tokens are averaged. Departure
from timm: the head does not start at zero, so that the first gradient reaches the whole network.
"""

from __future__ import annotations

from dataclasses import dataclass

from timm.models.mlp_mixer import MlpMixer
from torch import nn

from buttress.models.building_blocks import NARROW_INIT, Activation, InitSteps, activation_layer
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, Variant


def initialize_head(net: MlpMixer) -> None:
    nn.init.trunc_normal_(net.head.weight, std=0.02)


@dataclass(frozen=True)
class MixerConfig:
    """Patch, blocks and width; token MLPs are four times, channel MLPs half as wide."""

    patch: int
    depth: int
    dim: int
    init: InitSteps = NARROW_INIT
    activation: Activation = "gelu"


def build_mlp_mixer(config: MixerConfig, shape: InputShape) -> MlpMixer:
    return MlpMixer(
        img_size=shape.image_size,
        patch_size=config.patch,
        in_chans=shape.in_channels,
        num_classes=shape.num_classes,
        num_blocks=config.depth,
        embed_dim=config.dim,
        mlp_ratio=(4.0, 0.5),
        act_layer=activation_layer(config.activation),
    )


MLP_MIXER_FAMILY = ModelFamily(
    "mlp_mixer", "arXiv:2105.01601", "transformer", ImageSizes(4, multiple=4), build_mlp_mixer,
    attention="none",
)  # fmt: skip

MLP_MIXER_FAMILY.register(
    Variant(
        "mlp_mixer",
        MixerConfig(patch=4, depth=8, dim=128, init=(initialize_head,)),
        "Eight blocks of width 128, patches of 4; wide token MLPs (512), narrow channel MLPs (64).",
        published=0.68,
        tolerance=0.015,
    ),
    Variant("mlp_mixer_p16", MixerConfig(patch=16, depth=8, dim=128, init=(initialize_head,)),
            "Eight blocks of width 128, patches of 16, for images of 160 or 224 pixels.",
            image_sizes=ImageSizes(16, multiple=16)),
    Variant("mlp_mixer_mini", MixerConfig(patch=4, depth=8, dim=48),
            "Eight blocks of width 48, patches of 4."),
    Variant("mlp_mixer_tiny", MixerConfig(patch=8, depth=2, dim=48),
            "Two blocks of width 48, patches of 8.", image_sizes=ImageSizes(8, multiple=8)),
)  # fmt: skip
