"""WideResNet (arXiv:1605.07146) with a depth and a width per stage (arXiv:2110.03825).

Pre-activation blocks of two 3x3 convolutions in three stages. The 1x1 shortcut has no norm; it is
there when width or resolution changes, and it receives the activated tensor only when the width
changes, as in the code of arXiv:2110.03825.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from torch import Tensor, nn

from buttress.models.activations import activation_layer
from buttress.models.core import PATTERNS, Factory, Sizes
from buttress.models.shrink import scale_widths, shrink_last_stage
from buttress.models.staged import (
    SMALL,
    Family,
    Stages,
    draw_weights,
    global_pool,
    large_stem,
)

STAGES_PAPER = "arXiv:2110.03825"
# Channels of a mini: the widening factor once, twice and four times in the three stages.
MINI = 1 / 16


@dataclass(frozen=True)
class Plan(Stages):
    """Blocks and channels of the three stages, and the first layer.

    With ``late_stride`` the second convolution of a block carries the stride and the shortcut
    always takes the raw tensor, as in the WideResNet of arXiv:2209.14105.
    """

    stem_channels: int = 16
    stem_stride: int = 1
    bias: bool = False
    dropout: float = 0.0
    late_stride: bool = False


def widths(*factors: float, gamma: float = 1.0) -> tuple[int, ...]:
    """Channels of the stages for widening factors: 16, 32 and 64 times each, times ``gamma``."""
    return tuple(max(1, round(16 * 2**i * factor * gamma)) for i, factor in enumerate(factors))


def mini(plan: Plan) -> Plan:
    """The plan with a sixteenth of the channels and a stem that halves the resolution.

    Widths keep their ratios and the stem its 16 channels, so that studies of depth and width can be
    made in small: 9 blocks in every stage at width 10 stay within 13 million multiply-accumulates.
    """
    return replace(scale_widths(plan, MINI), stem_stride=2)


class Block(nn.Module):
    """norm-act-conv-norm-act-conv beside a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int, plan: Plan) -> None:
        super().__init__()
        act, bias = activation_layer(plan.activation), plan.bias
        first, second = (1, stride) if plan.late_stride else (stride, 1)
        self.norm1 = nn.BatchNorm2d(inside)
        self.act1 = act()
        self.conv1 = nn.Conv2d(inside, outside, 3, first, 1, bias=bias)
        self.norm2 = nn.BatchNorm2d(outside)
        self.act2 = act()
        self.dropout = nn.Dropout(plan.dropout)
        self.conv2 = nn.Conv2d(outside, outside, 3, second, 1, bias=bias)
        widens = inside != outside
        self.shares = widens and not plan.late_stride  # the activation, with the shortcut
        self.shortcut: nn.Module = nn.Identity()
        if widens or stride != 1:
            self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.act1(self.norm1(x))
        y = self.act2(self.norm2(self.conv1(activated)))
        return self.conv2(self.dropout(y)) + self.shortcut(activated if self.shares else x)


class WideResNet(nn.Module):
    """The network of a plan; images above 64x64 enter through a 7x7 stem with max-pooling."""

    def __init__(self, plan: Plan, num_classes: int, image_size: int, in_channels: int) -> None:
        super().__init__()
        self.stem = _stem(plan, image_size, in_channels)
        stages, inside = [], plan.stem_channels
        for index, (depth, outside) in enumerate(zip(plan.depths, plan.channels, strict=True)):
            blocks = []
            for position in range(depth):
                stride = 2 if index and not position else 1
                blocks.append(Block(inside, outside, stride, plan))
                inside = outside
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.norm = nn.BatchNorm2d(inside)
        self.act = activation_layer(plan.activation)()
        self.pool = global_pool()
        self.head = nn.Linear(inside, num_classes)
        draw_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.stem(x))
        return self.head(self.pool(self.act(self.norm(x))))


def _stem(plan: Plan, image_size: int, in_channels: int) -> nn.Module:
    if image_size > SMALL:
        return large_stem(in_channels, plan.stem_channels, plan.activation, plan.bias)
    return nn.Conv2d(in_channels, plan.stem_channels, 3, plan.stem_stride, 1, bias=plan.bias)


FAMILY = Family("wideresnet", "arXiv:1605.07146", Sizes(8), WideResNet)

WRN_34_10 = Plan((5, 5, 5), widths(10, 10, 10))

FAMILY.register("wrn_28_10", Plan((4, 4, 4), widths(10, 10, 10)), "WideResNet-28-10")
FAMILY.register("wrn_34_10", WRN_34_10, "WideResNet-34-10")
FAMILY.register(
    "wrn_40_10",
    Plan((6, 6, 6), widths(10, 10, 10), bias=True, dropout=0.3, late_stride=True),
    "WideResNet-40-10 with biases in all convolutions and dropout 0.3 inside blocks",
    published=55.85,
)
FAMILY.register(
    "wrn_34_12",
    Plan((5, 5, 5), widths(12, 12, 12)),
    "WideResNet-34-12",
    published=66.46,
    paper=STAGES_PAPER,
)
FAMILY.register(
    "wrn_34_r",
    scale_widths(shrink_last_stage(WRN_34_10), 2),
    "WideResNet-34-R: twice as wide as WideResNet-34-10, with a narrow last stage",
    published=68.12,
    paper=STAGES_PAPER,
)
FAMILY.register(
    "wrn_mini",
    mini(WRN_34_10),
    "WideResNet-34-10 with a sixteenth of the channels, stride-2 stem",
)
FAMILY.register(
    "wrn_34_r_mini",
    scale_widths(shrink_last_stage(mini(WRN_34_10)), 1.5),
    "wrn_mini half as wide again (twice would cost too much), with a narrow last stage",
    paper=STAGES_PAPER,
)
FAMILY.register(
    "wrn_tiny",
    Plan((1, 1, 1), (12, 24, 32), stem_channels=8, stem_stride=2),
    "one block per stage, 12 to 32 channels, stride-2 stem",
)

_COUNTS = r"(\d+)_(\d+)_(\d+)"
_WIDTHS = r"([1-9]\d*)_([1-9]\d*)_([1-9]\d*)"
_NAME = re.compile(rf"wrn_d{_COUNTS}_w{_WIDTHS}(?:_g(\d+(?:\.\d+)?))?(_mini)?")


@PATTERNS.register(
    "wrn_dA-B-C_wX-Y-Z",
    paper=STAGES_PAPER,
    tags=("cnn", "wideresnet"),
    published=None,
    sizes=Sizes(8),
)
def by_stages(name: str) -> Factory | None:
    """WideResNet by its stages; ``_g1.5`` at the end scales widths, ``_mini`` makes it slim.

    A, B, C are the blocks and X, Y, Z the widening factors of the stages. A mini has a sixteenth
    of the channels, so X, 2Y and 4Z, and a stride-2 stem; the two may be combined.
    """
    found = _NAME.fullmatch(name.lower().replace("-", "_"))
    if found is None:
        return None
    *numbers, gamma, is_mini = found.groups()
    depths, factors = numbers[:3], numbers[3:]
    channels = widths(*map(float, factors), gamma=float(gamma or 1))
    plan = Plan(tuple(map(int, depths)), channels)
    return FAMILY.factory(mini(plan) if is_mini else plan)
