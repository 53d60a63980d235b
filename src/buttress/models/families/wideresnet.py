"""WideResNet (arXiv:1605.07146) with a depth and a width per stage (arXiv:2110.03825).

Pre-activation blocks of two 3x3 convolutions in three stages. The 1x1 shortcut has no norm; it is
there when width or resolution changes, and it receives the activated tensor only when the width
changes, as in the code of arXiv:2110.03825.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from torch import Tensor, nn

from buttress.models.building_blocks import activation_layer
from buttress.models.core import PATTERNS, Factory, ImageSizes
from buttress.models.variants import (
    ROBUST_WRN_PAPER,
    InputShape,
    ModelFamily,
    ResidualNetwork,
    StageConfig,
    Variant,
    imagenet_stem,
    scale_widths,
    shrink_last_stage,
)

# Channels of a mini: the widening factor once, twice and four times in the three stages.
MINI_WIDTH_FACTOR = 1 / 16


@dataclass(frozen=True)
class WideResNetConfig(StageConfig):
    """Blocks and channels of the three stages, and the first layer.

    With ``stride_in_second_conv`` the second convolution of a block carries the stride and the
    shortcut always takes the raw tensor, as in the WideResNet of arXiv:2209.14105.
    """

    stem_channels: int = 16
    stem_stride: int = 1
    bias: bool = False
    dropout: float = 0.0
    stride_in_second_conv: bool = False


def stage_channels(*factors: float, scale: float = 1.0) -> tuple[int, ...]:
    """Channels of the stages for widening factors: 16, 32 and 64 times each, times ``scale``."""
    return tuple(max(1, round(16 * 2**i * factor * scale)) for i, factor in enumerate(factors))


def mini_config(config: WideResNetConfig) -> WideResNetConfig:
    """The configuration with a sixteenth of the channels and a stem that halves the resolution.

    Widths keep their ratios and the stem its 16 channels, so that studies of depth and width can be
    made in small: 9 blocks in every stage at width 10 stay within 13 million multiply-accumulates.
    """
    return replace(scale_widths(config, MINI_WIDTH_FACTOR), stem_stride=2)


class WideResNetBlock(nn.Module):
    """norm-act-conv-norm-act-conv beside a shortcut."""

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, config: WideResNetConfig
    ) -> None:
        super().__init__()
        act, bias = activation_layer(config.activation), config.bias
        first, second = (1, stride) if config.stride_in_second_conv else (stride, 1)
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.act1 = act()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, first, 1, bias=bias)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.act2 = act()
        self.dropout = nn.Dropout(config.dropout)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, second, 1, bias=bias)
        widens = in_channels != out_channels
        self.shortcut_takes_activated = widens and not config.stride_in_second_conv
        self.shortcut: nn.Module = nn.Identity()
        if widens or stride != 1:
            self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.act1(self.norm1(x))
        y = self.act2(self.norm2(self.conv1(activated)))
        shortcut = self.shortcut(activated if self.shortcut_takes_activated else x)
        return self.conv2(self.dropout(y)) + shortcut


def build_wideresnet(config: WideResNetConfig, shape: InputShape) -> ResidualNetwork:
    """The network; images above 64x64 enter through a 7x7 stem with max-pooling."""
    width, bias = config.stem_channels, config.bias
    stem: nn.Module
    if not shape.is_small:
        stem = imagenet_stem(shape.in_channels, width, config.activation, bias)
    else:
        stem = nn.Conv2d(shape.in_channels, width, 3, config.stem_stride, 1, bias=bias)
    return ResidualNetwork(stem, width, WideResNetBlock, config, shape, has_last_norm=True)


WIDERESNET_FAMILY = ModelFamily(
    "wideresnet", "arXiv:1605.07146", "cnn", ImageSizes(8), build_wideresnet
)

WRN_34_10 = WideResNetConfig((5, 5, 5), stage_channels(10, 10, 10))

WIDERESNET_FAMILY.register(
    Variant("wrn_28_10", WideResNetConfig((4, 4, 4), stage_channels(10, 10, 10)),
            "WideResNet-28-10"),
    Variant("wrn_34_10", WRN_34_10, "WideResNet-34-10"),
    Variant("wrn_40_10",
            WideResNetConfig((6, 6, 6), stage_channels(10, 10, 10), bias=True, dropout=0.3,
                stride_in_second_conv=True),
            "WideResNet-40-10 with biases in all convolutions and dropout 0.3 inside blocks",
            published=55.85),
    Variant("wrn_34_12", WideResNetConfig((5, 5, 5), stage_channels(12, 12, 12)),
            "WideResNet-34-12", published=66.46, is_rounded=True, paper=ROBUST_WRN_PAPER),
    Variant("wrn_34_r", scale_widths(shrink_last_stage(WRN_34_10), 2),
            "WideResNet-34-R: twice as wide as WideResNet-34-10, with a narrow last stage",
            published=68.12, is_rounded=True, paper=ROBUST_WRN_PAPER),
    Variant("wrn_mini", mini_config(WRN_34_10),
            "WideResNet-34-10 with a sixteenth of the channels, stride-2 stem"),
    Variant("wrn_34_r_mini", scale_widths(shrink_last_stage(mini_config(WRN_34_10)), 1.5),
            "wrn_mini half as wide again (twice would cost too much), with a narrow last stage",
            paper=ROBUST_WRN_PAPER),
    Variant("wrn_tiny", WideResNetConfig((1, 1, 1), (12, 24, 32), stem_channels=8, stem_stride=2),
            "one block per stage, 12 to 32 channels, stride-2 stem"),
)  # fmt: skip

_COUNTS = r"(\d+)_(\d+)_(\d+)"
_WIDTHS = r"([1-9]\d*)_([1-9]\d*)_([1-9]\d*)"
_NAME = re.compile(rf"wrn_d{_COUNTS}_w{_WIDTHS}(?:_g(\d+(?:\.\d+)?))?(_mini)?")


@PATTERNS.register(
    "wrn_dA-B-C_wX-Y-Z",
    paper=ROBUST_WRN_PAPER,
    tags=("cnn", "wideresnet"),
    published=None,
    sizes=ImageSizes(8),
)
def parse_wrn_name(name: str) -> Factory | None:
    """WideResNet by its stages; ``_g1.5`` at the end scales widths, ``_mini`` makes it slim.

    A, B, C are the blocks and X, Y, Z the widening factors of the stages. A mini has a sixteenth
    of the channels, so X, 2Y and 4Z, and a stride-2 stem; the two may be combined.
    """
    match = _NAME.fullmatch(name.lower().replace("-", "_"))
    if match is None:
        return None
    *numbers, gamma, is_mini = match.groups()
    depths, factors = numbers[:3], numbers[3:]
    channels = stage_channels(*map(float, factors), scale=float(gamma or 1))
    config = WideResNetConfig(tuple(map(int, depths)), channels)
    return WIDERESNET_FAMILY.factory(mini_config(config) if is_mini else config)
