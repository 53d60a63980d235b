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

from buttress.models.building_blocks import NARROW_INIT, Activation, InitSteps, replace_activation
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, Variant


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
    init: InitSteps = NARROW_INIT
    activation: Activation = "silu"

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


def build_mobilevit(config: MobileViTConfig, shape: InputShape) -> ByobNet:
    layout = ByoModelCfg(
        blocks=config.stages(),
        stem_chs=config.stem,
        stem_type="3x3",
        stem_pool="",
        downsample="",
        act_layer="silu",
        num_features=config.features,
    )
    net = ByobNet(layout, shape.num_classes, shape.in_channels, zero_init_last=False)
    if shape.is_small:
        net.stem.conv.stride = (config.stem_stride, config.stem_stride)
    replace_activation(net, "silu", config.activation)
    return net


MOBILEVIT_FAMILY = ModelFamily(
    "mobilevit", "arXiv:2110.02178", "hybrid", ImageSizes(32), build_mobilevit
)

MOBILEVIT_FAMILY.register(
    Variant("mobilevit",
            MobileViTConfig(stem=16, channels=(32, 64, 96, 128, 160), widths=(144, 192, 240),
                depths=(2, 4, 3), features=640, init=()),
            "MobileViT-S, stem of stride 1 up to 64x64 images", published=5.00, tolerance=0.015),
    Variant("mobilevit_mini",
            MobileViTConfig(stem=8, channels=(8, 16, 24, 32, 48), widths=(36, 48, 72),
                depths=(2, 4, 3), features=160, expansion=2.0),
            "the stages of MobileViT-S, 8 to 48 channels, transformers of width 36 to 72"),
    Variant("mobilevit_tiny",
            MobileViTConfig(stem=8, channels=(8, 8, 16, 16, 24), widths=(16, 16, 24),
                depths=(1, 1, 1), features=32, repeats=1, expansion=2.0, stem_stride=2),
            "one layer in each transformer, 8 to 24 channels, stride-2 stem"),
)  # fmt: skip
