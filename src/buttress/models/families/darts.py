"""DARTS: "Differentiable Architecture Search" (Liu et al., arXiv:1806.09055).

The network of the second-order search on CIFAR-10 (the genotype called DARTS_V2): every cell reads
the two cells before it, computes four nodes from two operations each, and puts the nodes side by
side. The first cell of the second and of the third stage halves the resolution. Sizes and the -R
form are those of arXiv:2110.03825: 11 cells behind a stem of 108 channels.

Departures from the paper: no auxiliary head and no path dropping, which only serve its training;
images above 64x64 enter through three 3x3 convolutions with stride 2, of which both inputs of the
first cell are the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.models.building_blocks import Activation, activation_layer
from buttress.models.core import ImageSizes
from buttress.models.variants import (
    ROBUST_WRN_PAPER,
    InputShape,
    ModelFamily,
    StageConfig,
    Variant,
    global_pool,
    shrink_last_stage,
)

NODES_PER_CELL = 4

DartsOperation = Literal["sep_conv", "dil_conv", "max_pool", "skip"]
DartsEdge = tuple[
    DartsOperation, int
]  # what to do, and to which: 0 and 1 are the inputs, 2 is node one

NORMAL: tuple[tuple[DartsEdge, DartsEdge], ...] = (
    (("sep_conv", 0), ("sep_conv", 1)),
    (("sep_conv", 0), ("sep_conv", 1)),
    (("sep_conv", 1), ("skip", 0)),
    (("skip", 0), ("dil_conv", 2)),
)
REDUCTION: tuple[tuple[DartsEdge, DartsEdge], ...] = (
    (("max_pool", 0), ("max_pool", 1)),
    (("skip", 2), ("max_pool", 1)),
    (("max_pool", 0), ("skip", 2)),
    (("skip", 2), ("max_pool", 1)),
)


@dataclass(frozen=True)
class DartsConfig(StageConfig):
    """``depths`` are cells per stage, ``channels`` those of a node, a quarter of a cell's."""

    stem_channels: int = 108
    stem_stride: int = 1

    @property
    def channel_multiple(self) -> int:
        """A factorized reduction makes its channels in two halves."""
        return 2


class ReluConvNorm(nn.Sequential):
    """Activation, 1x1 convolution, norm: brings a cell's input to the width of its nodes."""

    def __init__(self, in_channels: int, out_channels: int, act: Activation) -> None:
        super().__init__(
            activation_layer(act)(),
            nn.Conv2d(in_channels, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )


class FactorizedReduction(nn.Module):
    """Halves the resolution by two 1x1 convolutions, one on even and one on odd pixels."""

    def __init__(self, in_channels: int, out_channels: int, act: Activation) -> None:
        super().__init__()
        self.act = activation_layer(act)()
        self.even = nn.Conv2d(in_channels, out_channels // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(in_channels, out_channels // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(x)
        shifted = F.pad(x, (-1, 1, -1, 1))  # by one pixel; the zeros count at odd sizes only
        return self.norm(torch.cat([self.even(x), self.odd(shifted)], 1))


def _depthwise_block(width: int, stride: int, act: Activation, dilation: int = 1) -> nn.Sequential:
    """Activation, depth-wise 3x3 and 1x1 convolution, norm."""
    return nn.Sequential(
        activation_layer(act)(),
        nn.Conv2d(width, width, 3, stride, dilation, dilation, groups=width, bias=False),
        nn.Conv2d(width, width, 1, bias=False),
        nn.BatchNorm2d(width),
    )


def _build_operation(kind: DartsOperation, width: int, stride: int, act: Activation) -> nn.Module:
    if kind == "max_pool":
        return nn.MaxPool2d(3, stride, 1)
    if kind == "dil_conv":
        return _depthwise_block(width, stride, act, dilation=2)
    if kind == "sep_conv":
        return nn.Sequential(_depthwise_block(width, stride, act), _depthwise_block(width, 1, act))
    return nn.Identity() if stride == 1 else FactorizedReduction(width, width, act)


class DartsCell(nn.Module):
    """Four nodes, each the sum of two operations on the inputs or on earlier nodes."""

    def __init__(
        self, inputs: tuple[nn.Module, nn.Module], width: int, act: Activation, *, reduces: bool
    ) -> None:
        super().__init__()
        self.input0, self.input1 = inputs
        self.edges = REDUCTION if reduces else NORMAL
        self.operations = nn.ModuleList(
            _build_operation(kind, width, 2 if reduces and source < 2 else 1, act)
            for pair in self.edges
            for kind, source in pair
        )

    def forward(self, input0: Tensor, input1: Tensor) -> Tensor:
        states = [self.input0(input0), self.input1(input1)]
        for node, ((_, first), (_, second)) in enumerate(self.edges):
            left, right = self.operations[2 * node], self.operations[2 * node + 1]
            states.append(left(states[first]) + right(states[second]))
        return torch.cat(states[2:], 1)


class DartsStage(nn.ModuleList):
    """A sequence of cells; passes the last two outputs on."""

    def forward(self, input0: Tensor, input1: Tensor) -> tuple[Tensor, Tensor]:
        for cell in self:
            input0, input1 = input1, cell(input0, input1)
        return input0, input1


class Darts(nn.Module):
    """The network of a configuration."""

    def __init__(self, config: DartsConfig, shape: InputShape) -> None:
        super().__init__()
        self.stem = _build_stem(config, shape)
        self.stages = _build_stages(config)
        self.pool = global_pool()
        self.head = nn.Linear(NODES_PER_CELL * config.channels[-1], shape.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        older = newer = self.stem(x)
        for stage in self.stages:
            older, newer = stage(older, newer)
        return self.head(self.pool(newer))


def _build_stages(config: DartsConfig) -> nn.ModuleList:
    act = config.activation
    older = newer = config.stem_channels
    stages, after_reduction = nn.ModuleList(), False
    for index, (depth, width) in enumerate(zip(config.depths, config.channels, strict=True)):
        cells = DartsStage()
        for position in range(depth):
            # The older input is still twice as large where the newer one was just reduced.
            adapt = FactorizedReduction if after_reduction else ReluConvNorm
            inputs = (adapt(older, width, act), ReluConvNorm(newer, width, act))
            after_reduction = index > 0 and position == 0
            cells.append(DartsCell(inputs, width, act, reduces=after_reduction))
            older, newer = newer, NODES_PER_CELL * width
        stages.append(cells)
    return stages


def _build_stem(config: DartsConfig, shape: InputShape) -> nn.Sequential:
    width = config.stem_channels
    strides = [config.stem_stride] if shape.is_small else [2, 2, 2]
    stem, inside = nn.Sequential(), shape.in_channels
    for position, stride in enumerate(strides):
        if position:
            stem.append(activation_layer(config.activation)())
        stem.append(nn.Conv2d(inside, width, 3, stride, 1, bias=False))
        stem.append(nn.BatchNorm2d(width))
        inside = width
    return stem


DARTS_FAMILY = ModelFamily("darts", "arXiv:1806.09055", "cnn", ImageSizes(8), Darts)

DARTS = DartsConfig((3, 4, 4), (72, 144, 288))
MINI = DartsConfig((2, 3, 3), (16, 32, 64), stem_channels=48, stem_stride=2)

DARTS_FAMILY.register(
    Variant("darts", DARTS, "DARTS_V2, 11 cells of 72, 144 and 288 channels per node",
            published=6.58, is_rounded=True),
    Variant("darts_r", shrink_last_stage(DARTS), "DARTS-R: DARTS with a narrow last stage",
            published=2.53, is_rounded=True, paper=ROBUST_WRN_PAPER),
    Variant("darts_mini", MINI, "8 cells of 16, 32 and 64 channels per node, stride-2 stem"),
    Variant("darts_r_mini", shrink_last_stage(MINI), "darts_mini with a narrow last stage",
            paper=ROBUST_WRN_PAPER),
    Variant("darts_tiny", DartsConfig((1, 1, 2), (8, 16, 32), stem_channels=16, stem_stride=2),
            "4 cells of 8, 16 and 32 channels per node, stride-2 stem"),
)  # fmt: skip
