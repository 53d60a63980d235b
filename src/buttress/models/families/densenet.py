"""DenseNet: "Densely Connected Convolutional Networks" (Huang et al., arXiv:1608.06993).

Dense blocks and transitions are torchvision's; here they are put together with any number of
channels at the start of each stage. The -R form is that of arXiv:2110.03825: fewer channels enter
the last dense block, whose layers add as many as before.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn
from torchvision.models.densenet import _DenseBlock, _Transition

from buttress.models.building_blocks import activation_layer, replace_activation
from buttress.models.core import ImageSizes
from buttress.models.variants import (
    ROBUST_WRN_PAPER,
    InputShape,
    ModelFamily,
    StageConfig,
    Variant,
    global_pool,
    imagenet_stem,
    initialize_he,
    shrink_last_stage,
)

BOTTLENECK = 4


@dataclass(frozen=True)
class DenseNetConfig(StageConfig):
    """``depths`` are layers per dense block, ``channels`` what enters each block."""

    growth: int = 12
    stem_stride: int = 1


def standard_config(
    depths: tuple[int, ...], growth: int, initial_channels: int, stem_stride: int = 1
) -> DenseNetConfig:
    """The usual configuration: each transition halves the channels."""
    channels = [initial_channels]
    for depth in depths[:-1]:
        channels.append((channels[-1] + depth * growth) // 2)
    return DenseNetConfig(depths, tuple(channels), growth=growth, stem_stride=stem_stride)


class DenseNet(nn.Module):
    """The network; images above 64x64 enter through a 7x7 stem with max-pooling."""

    def __init__(self, config: DenseNetConfig, shape: InputShape) -> None:
        super().__init__()
        channels, first = shape.in_channels, config.channels[0]
        self.stem: nn.Module = nn.Conv2d(channels, first, 3, config.stem_stride, 1, bias=False)
        if not shape.is_small:
            self.stem = imagenet_stem(channels, first, config.activation)
        self.features = _build_dense_blocks(config)
        width = config.channels[-1] + config.depths[-1] * config.growth
        self.norm = nn.BatchNorm2d(width)
        self.act = activation_layer(config.activation)()
        self.pool = global_pool()
        self.head = nn.Linear(width, shape.num_classes)
        initialize_he(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(self.stem(x))
        return self.head(self.pool(self.act(self.norm(x))))


def _build_dense_blocks(config: DenseNetConfig) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    entering = zip(config.depths, config.channels, strict=True)
    for stage, (depth, width) in enumerate(entering, start=1):
        layers[f"denseblock{stage}"] = _DenseBlock(depth, width, BOTTLENECK, config.growth, 0.0)
        if stage < len(config.channels):
            leaving = width + depth * config.growth
            layers[f"transition{stage}"] = _Transition(leaving, config.channels[stage])
    blocks = nn.Sequential(layers)
    replace_activation(blocks, "relu", config.activation)
    return blocks


DENSENET_FAMILY = ModelFamily("densenet", "arXiv:1608.06993", "cnn", ImageSizes(8), DenseNet)

DENSENET_121 = standard_config((6, 12, 24, 16), growth=32, initial_channels=64)
DENSENET_121_MINI = standard_config((2, 4, 8, 5), growth=12, initial_channels=24, stem_stride=2)

DENSENET_FAMILY.register(
    Variant("densenet", standard_config((16, 16, 16, 16), growth=12, initial_channels=24),
            "DenseNet-BC, four blocks of 16 layers that add 12 channels each", published=1.12),
    Variant("densenet_mini",
            standard_config((4, 4, 4, 4), growth=12, initial_channels=24, stem_stride=2),
            "four blocks of 4 layers that add 12 channels each, stride-2 stem"),
    Variant("densenet_tiny",
            standard_config((2, 2, 2, 2), growth=6, initial_channels=12, stem_stride=2),
            "four blocks of 2 layers that add 6 channels each, stride-2 stem"),
    Variant("densenet_121", DENSENET_121,
            "DenseNet-121; 3x3 stem without pooling up to 64x64 images, the ImageNet stem above",
            published=6.96, is_rounded=True),
    Variant("densenet_121_r", shrink_last_stage(DENSENET_121),
            "DenseNet-121-R: DenseNet-121 with a narrow last stage", published=6.00,
            is_rounded=True, paper=ROBUST_WRN_PAPER),
    Variant("densenet_121_mini", DENSENET_121_MINI,
            "DenseNet-121 with a third of the layers, which add 12 channels each, stride-2 stem"),
    Variant("densenet_121_r_mini", shrink_last_stage(DENSENET_121_MINI),
            "densenet_121_mini with a narrow last stage", paper=ROBUST_WRN_PAPER),
)  # fmt: skip
