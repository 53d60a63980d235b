"""PreActResNet: "Identity Mappings in Deep Residual Networks" (He et al., arXiv:1603.05027).

Bottlenecks of norm-act-convolution, four stages. As in the network behind the published count, the
1x1 shortcut has no norm and takes the tensor after the first norm and activation, and there is no
norm before the head. timm's version has one, and is larger by it.
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

EXPANSION = 4


@dataclass(frozen=True)
class PreActResNetConfig(StageConfig):
    """``channels`` are those inside the bottlenecks, a quarter of what leaves them."""

    stem_channels: int = 64
    stem_stride: int = 1


class PreActBlock(nn.Module):
    """1x1, 3x3 and 1x1 convolution, each after a norm and an activation, beside a shortcut."""

    def __init__(
        self, in_channels: int, width: int, stride: int, config: PreActResNetConfig
    ) -> None:
        super().__init__()
        act, out_channels = activation_layer(config.activation), EXPANSION * width
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.act1 = act()
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.act2 = act()
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(width)
        self.act3 = act()
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.act1(self.norm1(x))
        y = self.conv1(activated)
        y = self.conv2(self.act2(self.norm2(y)))
        y = self.conv3(self.act3(self.norm3(y)))
        return y + (x if self.shortcut is None else self.shortcut(activated))


def build_preact_resnet(config: PreActResNetConfig, shape: InputShape) -> ResidualNetwork:
    """The network; images above 64x64 enter through a 7x7 stem with max-pooling."""
    width = config.stem_channels
    stem: nn.Module = nn.Conv2d(shape.in_channels, width, 3, config.stem_stride, 1, bias=False)
    if not shape.is_small:
        stem = imagenet_stem(shape.in_channels, width, config.activation)
    return ResidualNetwork(stem, width, PreActBlock, config, shape, expansion=EXPANSION)


PREACT_RESNET_FAMILY = ModelFamily(
    "preact_resnet", "arXiv:1603.05027", "cnn", ImageSizes(8), build_preact_resnet
)

PREACT_RESNET_FAMILY.register(
    Variant("preact_resnet_50", PreActResNetConfig((3, 4, 6, 3), (64, 128, 256, 512)),
            "PreActResNet-50; 3x3 stem without pooling up to 64x64 images, the ImageNet stem above",
            published=23.50),
    Variant("preact_resnet_mini",
            PreActResNetConfig((1, 2, 3, 1), (8, 16, 32, 64), stem_channels=16),
            "1, 2, 3 and 1 bottlenecks of 8 to 64 channels"),
    Variant("preact_resnet_tiny",
            PreActResNetConfig((1, 1, 1, 1), (6, 12, 18, 24), stem_channels=12, stem_stride=2),
            "one bottleneck per stage, 6 to 24 channels, stride-2 stem"),
)  # fmt: skip
