"""ResNet (He et al., arXiv:1512.03385) on timm, with the usual stem for small images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import nn

from buttress.models.building_blocks import replace_activation
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, StageConfig, Variant

PLAIN_STEM_CHANNELS = 64  # channels of timm's plain stem, which are fixed


@dataclass(frozen=True)
class ResNetConfig(StageConfig):
    """``channels`` are those inside the blocks; a bottleneck puts out four times as many."""

    block: Literal["basic", "bottleneck"] = "bottleneck"
    stem_channels: int = PLAIN_STEM_CHANNELS
    stem_stride: int = 1


def use_small_stem(net: ResNet, in_channels: int, stride: int = 1) -> None:
    """Replaces the 7x7 stride-2 convolution and the max-pooling by one 3x3 convolution."""
    width = net.bn1.num_features
    net.conv1 = nn.Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    net.maxpool = nn.Identity()


def build_resnet(config: ResNetConfig, shape: InputShape) -> ResNet:
    """The network of a configuration; images above 64x64 enter through timm's stem."""
    net = ResNet(
        BasicBlock if config.block == "basic" else Bottleneck,
        config.depths,
        shape.num_classes,
        shape.in_channels,
        channels=config.channels,
        # A deep stem has twice `stem_width`, where a plain one cannot be narrower.
        stem_type="" if config.stem_channels == PLAIN_STEM_CHANNELS else "deep",
        stem_width=config.stem_channels // 2,
        zero_init_last=False,
    )
    if shape.is_small:
        use_small_stem(net, shape.in_channels, config.stem_stride)
    replace_activation(net, "relu", config.activation)
    return net


RESNET_FAMILY = ModelFamily("resnet", "arXiv:1512.03385", "cnn", ImageSizes(8), build_resnet)

RESNET_FAMILY.register(
    Variant("resnet_50", ResNetConfig((3, 4, 6, 3), (64, 128, 256, 512)),
            "ResNet-50; 3x3 stem without pooling up to 64x64 images, the ImageNet stem above",
            published=23.52),
    Variant("resnet_50_gelu", ResNetConfig((3, 4, 6, 3), (64, 128, 256, 512), activation="gelu"),
            "ResNet-50 with GELU in place of ReLU"),
    Variant("resnet_18", ResNetConfig((2, 2, 2, 2), (64, 128, 256, 512), block="basic"),
            "ResNet-18; 3x3 stem without pooling up to 64x64 images, the ImageNet stem above"),
    Variant("resnet_18_slim",
            ResNetConfig((2, 2, 2, 2), (16, 32, 64, 128), block="basic", stem_channels=16),
            "ResNet-18 with a quarter of the channels, for benchmarks on a CPU"),
    Variant("resnet_mini", ResNetConfig((1, 2, 3, 1), (8, 16, 32, 64), stem_channels=16),
            "1, 2, 3 and 1 bottlenecks of 8 to 64 channels"),
    Variant("resnet_tiny",
            ResNetConfig((1, 1, 1, 1), (8, 16, 32, 48), block="basic", stem_channels=8,
                stem_stride=2), "one basic block per stage, 8 to 48 channels, stride-2 stem"),
)  # fmt: skip
