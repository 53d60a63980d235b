"""MobileViT (Mehta & Rastegari, arXiv:2110.02178) on timm: transformers inside a MobileNet.

Inverted residuals, and from the third stage on blocks that unfold a map into 2x2 patches and let
attention join the pixels of the same place in every patch. Up to 64x64 images the stem keeps the
resolution (maps of 8, 4 and 2 where attention is, for 32x32), which the published count does not
decide. timm's MobileViT-S is 1.2% smaller than the published network, whose attention and MLPs have
other widths.
"""

from __future__ import annotations

from dataclasses import dataclass

from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg

# Imported for the block that it adds to those of ByobNet.
from timm.models.mobilevit import MobileVitBlock as MobileVitBlock

from buttress.models.building_blocks import (
    Activation,
    initialize_linear_layers,
    replace_activation,
    scale_residual_branches,
)
from buttress.models.core import MODELS, Factory, ImageSizes
from buttress.models.variants import MAX_SMALL_IMAGE

PAPER = "arXiv:2110.02178"


@dataclass(frozen=True)
class MobileViTConfig:
    """Channels of five stages, and of the last three the width and depth of the transformers."""

    stem: int
    channels: tuple[int, int, int, int, int]
    widths: tuple[int, int, int]
    depths: tuple[int, int, int]
    features: int  # channels before the classifier
    repeats: int = 3  # inverted residuals in the second stage
    expansion: float = 4.0
    stem_stride: int = 1  # up to 64x64 images
    init: bool = True

    def inverted_residual(self, channels: int, stride: int, depth: int = 1) -> ByoBlockCfg:
        return ByoBlockCfg(
            type="bottle",
            d=depth,
            c=channels,
            s=stride,
            gs=1,
            br=self.expansion,
            block_kwargs={"bottle_in": True, "linear_out": True},
        )

    def stages(self) -> tuple[ByoBlockCfg | tuple[ByoBlockCfg, ...], ...]:
        first, second, *others = self.channels
        stages = [
            self.inverted_residual(first, stride=1),
            self.inverted_residual(second, stride=2, depth=self.repeats),
        ]
        for channels, width, depth in zip(others, self.widths, self.depths, strict=True):
            block_kwargs = {"transformer_dim": width, "transformer_depth": depth, "patch_size": 2}
            attention = ByoBlockCfg(
                type="mobilevit", d=1, c=channels, s=1, block_kwargs=block_kwargs
            )
            stages.append((self.inverted_residual(channels, stride=2), attention))
        return tuple(stages)


def register_variants(config: MobileViTConfig) -> Factory:
    """A factory for a plan; the activation stays a choice."""
    layout = ByoModelCfg(
        blocks=config.stages(),
        stem_chs=config.stem,
        stem_type="3x3",
        stem_pool="",
        downsample="",
        act_layer="silu",
        num_features=config.features,
    )

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = "silu",
    ) -> ByobNet:
        net = ByobNet(layout, num_classes, in_channels, zero_init_last=False)
        if image_size <= MAX_SMALL_IMAGE:
            net.stem.conv.stride = (config.stem_stride, config.stem_stride)
        if config.init:
            initialize_linear_layers(net)
            scale_residual_branches(net)
        replace_activation(net, "silu", activation)
        return net

    return build


MODELS.register(
    "mobilevit",
    paper=PAPER,
    tags=("hybrid", "mobilevit", "published"),
    summary="MobileViT-S, stem of stride 1 up to 64x64 images",
    published=5.00,
    published_within=0.015,
    sizes=ImageSizes(32),
)(
    register_variants(
        MobileViTConfig(
            stem=16,
            channels=(32, 64, 96, 128, 160),
            widths=(144, 192, 240),
            depths=(2, 4, 3),
            features=640,
            init=False,
        )
    )
)

MODELS.register(
    "mobilevit_mini",
    paper=PAPER,
    tags=("hybrid", "mobilevit", "mini"),
    summary="the stages of MobileViT-S, 8 to 48 channels, transformers of width 36 to 72",
    published=None,
    sizes=ImageSizes(32),
)(
    register_variants(
        MobileViTConfig(
            stem=8,
            channels=(8, 16, 24, 32, 48),
            widths=(36, 48, 72),
            depths=(2, 4, 3),
            features=160,
            expansion=2.0,
        )
    )
)

MODELS.register(
    "mobilevit_tiny",
    paper=PAPER,
    tags=("hybrid", "mobilevit", "tiny"),
    summary="one layer in each transformer, 8 to 24 channels, stride-2 stem",
    published=None,
    sizes=ImageSizes(32),
)(
    register_variants(
        MobileViTConfig(
            stem=8,
            channels=(8, 8, 16, 16, 24),
            widths=(16, 16, 24),
            depths=(1, 1, 1),
            features=32,
            repeats=1,
            expansion=2.0,
            stem_stride=2,
        )
    )
)
