"""ResNeXt: "Aggregated Residual Transformations" (Xie et al., arXiv:1611.05431), CIFAR form.

Three stages of bottlenecks whose 3x3 convolution works in groups. As in the network behind the
published count, the first layer is a 1x1 convolution.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from buttress.models.building_blocks import activation_layer
from buttress.models.core import ImageSizes
from buttress.models.variants import (
    InputShape,
    ModelFamily,
    ResidualNetwork,
    StageConfig,
    Variant,
    imagenet_stem,
)

EXPANSION = 2


@dataclass(frozen=True)
class ResNeXtConfig(StageConfig):
    """``channels`` are those of the grouped convolutions, half of what leaves the blocks."""

    groups: int = 2
    stem_channels: int = 64
    stem_kernel: int = 1
    stem_stride: int = 1

    @property
    def channel_multiple(self) -> int:
        """Each group has as many channels as the others."""
        return self.groups


class ResNeXtBlock(nn.Module):
    """1x1, grouped 3x3 and 1x1 convolution beside a shortcut, then an activation."""

    def __init__(self, in_channels: int, width: int, stride: int, config: ResNeXtConfig) -> None:
        super().__init__()
        act, out_channels = activation_layer(config.activation), EXPANSION * width
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.act1 = act()
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=config.groups, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.act2 = act()
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            conv = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(out_channels))
        self.act3 = act()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.norm1(self.conv1(x)))
        y = self.act2(self.norm2(self.conv2(y)))
        return self.act3(self.norm3(self.conv3(y)) + self.shortcut(x))


def build_resnext(config: ResNeXtConfig, shape: InputShape) -> ResidualNetwork:
    """The network; images above 64x64 enter through a 7x7 stem with max-pooling."""
    stem, width = _build_stem(config, shape), config.stem_channels
    return ResidualNetwork(stem, width, ResNeXtBlock, config, shape, expansion=EXPANSION)


def _build_stem(config: ResNeXtConfig, shape: InputShape) -> nn.Sequential:
    if not shape.is_small:
        return imagenet_stem(shape.in_channels, config.stem_channels, config.activation)
    kernel = config.stem_kernel
    conv = nn.Conv2d(
        shape.in_channels, config.stem_channels, kernel, config.stem_stride, kernel // 2, bias=False
    )
    norm, act = nn.BatchNorm2d(config.stem_channels), activation_layer(config.activation)()
    return nn.Sequential(conv, norm, act)


RESNEXT_FAMILY = ModelFamily("resnext", "arXiv:1611.05431", "cnn", ImageSizes(8), build_resnext)

RESNEXT_FAMILY.register(
    Variant(
        "resnext_29",
        ResNeXtConfig((3, 3, 3), (128, 256, 512)),
        "ResNeXt-29 with 2 groups of 64 channels; 1x1 stem up to 64x64 images, ImageNet stem above",
        published=9.12,
    ),
    # A 1x1 stem with stride 2 would not look at three pixels out of four.
    Variant("resnext_mini",
            ResNeXtConfig((3, 3, 3), (20, 40, 80), stem_channels=20, stem_kernel=3, stem_stride=2),
            "three bottlenecks per stage, 20 to 80 channels in 2 groups, 3x3 stem with stride 2"),
    Variant("resnext_tiny",
            ResNeXtConfig((1, 1, 1), (12, 24, 36), stem_channels=12, stem_kernel=3, stem_stride=2),
            "one bottleneck per stage, 12 to 36 channels in 2 groups, 3x3 stem with stride 2"),
)  # fmt: skip
