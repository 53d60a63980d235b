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

from buttress.models.activations import activation_layer, swap_activation
from buttress.models.core import Sizes
from buttress.models.shrink import shrink_last_stage
from buttress.models.staged import (
    SMALL,
    Family,
    Stages,
    draw_weights,
    global_pool,
    large_stem,
)

STAGES_PAPER = "arXiv:2110.03825"
BOTTLENECK = 4


@dataclass(frozen=True)
class Plan(Stages):
    """``depths`` are layers per dense block, ``channels`` what enters each block."""

    growth: int = 12
    stem_stride: int = 1


def halving(depths: tuple[int, ...], growth: int, first: int, stem_stride: int = 1) -> Plan:
    """The usual plan: each transition halves the channels."""
    channels = [first]
    for depth in depths[:-1]:
        channels.append((channels[-1] + depth * growth) // 2)
    return Plan(depths, tuple(channels), growth=growth, stem_stride=stem_stride)


class DenseNet(nn.Module):
    """The network of a plan; images above 64x64 enter through a 7x7 stem with max-pooling."""

    def __init__(self, plan: Plan, num_classes: int, image_size: int, in_channels: int) -> None:
        super().__init__()
        first = plan.channels[0]
        self.stem: nn.Module = nn.Conv2d(in_channels, first, 3, plan.stem_stride, 1, bias=False)
        if image_size > SMALL:
            self.stem = large_stem(in_channels, first, plan.activation)
        self.features = _dense_blocks(plan)
        width = plan.channels[-1] + plan.depths[-1] * plan.growth
        self.norm = nn.BatchNorm2d(width)
        self.act = activation_layer(plan.activation)()
        self.pool = global_pool()
        self.head = nn.Linear(width, num_classes)
        draw_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(self.stem(x))
        return self.head(self.pool(self.act(self.norm(x))))


def _dense_blocks(plan: Plan) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    entering = zip(plan.depths, plan.channels, strict=True)
    for stage, (depth, width) in enumerate(entering, start=1):
        layers[f"denseblock{stage}"] = _DenseBlock(depth, width, BOTTLENECK, plan.growth, 0.0)
        if stage < len(plan.channels):
            leaving = width + depth * plan.growth
            layers[f"transition{stage}"] = _Transition(leaving, plan.channels[stage])
    blocks = nn.Sequential(layers)
    swap_activation(blocks, "relu", plan.activation)
    return blocks


FAMILY = Family("densenet", "arXiv:1608.06993", Sizes(8), DenseNet)

DENSENET_121 = halving((6, 12, 24, 16), growth=32, first=64)
DENSENET_121_MINI = halving((2, 4, 8, 5), growth=12, first=24, stem_stride=2)

FAMILY.register(
    "densenet",
    halving((16, 16, 16, 16), growth=12, first=24),
    "DenseNet-BC, four blocks of 16 layers that add 12 channels each",
    published=1.12,
)
FAMILY.register(
    "densenet_mini",
    halving((4, 4, 4, 4), growth=12, first=24, stem_stride=2),
    "four blocks of 4 layers that add 12 channels each, stride-2 stem",
)
FAMILY.register(
    "densenet_tiny",
    halving((2, 2, 2, 2), growth=6, first=12, stem_stride=2),
    "four blocks of 2 layers that add 6 channels each, stride-2 stem",
)
FAMILY.register(
    "densenet_121",
    DENSENET_121,
    "DenseNet-121; 3x3 stem without pooling up to 64x64 images, the ImageNet stem above",
    published=6.96,
)
FAMILY.register(
    "densenet_121_r",
    shrink_last_stage(DENSENET_121),
    "DenseNet-121-R: DenseNet-121 with a narrow last stage",
    published=6.00,
    paper=STAGES_PAPER,
)
FAMILY.register(
    "densenet_121_mini",
    DENSENET_121_MINI,
    "DenseNet-121 with a third of the layers, which add 12 channels each, stride-2 stem",
)
FAMILY.register(
    "densenet_121_r_mini",
    shrink_last_stage(DENSENET_121_MINI),
    "densenet_121_mini with a narrow last stage",
    paper=STAGES_PAPER,
)
