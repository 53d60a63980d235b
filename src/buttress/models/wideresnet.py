"""WideResNet (arXiv:1605.07146) with a depth and a width per stage (arXiv:2110.03825).

Pre-activation blocks of two 3x3 convolutions in three stages. The 1x1 shortcut has no norm; it is
there when width or resolution changes, and it receives the activated tensor only when the width
changes, as in the code of arXiv:2110.03825.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from torch import Tensor, nn

from buttress.models.activations import Activation, activation_layer
from buttress.models.core import MODELS, PATTERNS, Factory, Sizes

PAPER = "arXiv:1605.07146"
STAGES_PAPER = "arXiv:2110.03825"
SMALL = 64


@dataclass(frozen=True)
class Plan:
    """The shape of a WideResNet: blocks and channels of its three stages, and its first layer."""

    depths: tuple[int, ...]
    channels: tuple[int, ...]
    stem_channels: int = 16
    stem_stride: int = 1
    bias: bool = False
    dropout: float = 0.0
    activation: Activation = "relu"


def widths(*factors: float, gamma: float = 1.0) -> tuple[int, ...]:
    """Channels of the stages for widening factors: 16, 32 and 64 times each, times ``gamma``."""
    return tuple(round(16 * 2**i * factor * gamma) for i, factor in enumerate(factors))


class Block(nn.Module):
    """norm-act-conv-norm-act-conv beside a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int, plan: Plan) -> None:
        super().__init__()
        act = activation_layer(plan.activation)
        self.norm1 = nn.BatchNorm2d(inside)
        self.act1 = act()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=plan.bias)
        self.norm2 = nn.BatchNorm2d(outside)
        self.act2 = act()
        self.dropout = nn.Dropout(plan.dropout)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=plan.bias)
        self.widens = inside != outside
        self.shortcut: nn.Module = nn.Identity()
        if self.widens or stride != 1:
            self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=plan.bias)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.act1(self.norm1(x))
        y = self.act2(self.norm2(self.conv1(activated)))
        return self.conv2(self.dropout(y)) + self.shortcut(activated if self.widens else x)


class WideResNet(nn.Module):
    """The network of a plan; images above 64x64 enter through a 7x7 stem with max-pooling."""

    def __init__(self, plan: Plan, num_classes: int, image_size: int, in_channels: int) -> None:
        super().__init__()
        act = activation_layer(plan.activation)
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
        self.act = act()
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inside, num_classes)
        self._initialise()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.stem(x))
        return self.head(self.pool(self.act(self.norm(x))))

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, 0, math.sqrt(2 / fan_out))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.zeros_(self.head.bias)


def _stem(plan: Plan, image_size: int, in_channels: int) -> nn.Module:
    width = plan.stem_channels
    if image_size <= SMALL:
        return nn.Conv2d(in_channels, width, 3, plan.stem_stride, 1, bias=plan.bias)
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 7, 2, 3, bias=plan.bias),
        nn.BatchNorm2d(width),
        activation_layer(plan.activation)(),
        nn.MaxPool2d(3, 2, 1),
    )


def factory_of(plan: Plan) -> Factory:
    """A factory for a plan; the activation stays a choice."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = plan.activation,
    ) -> WideResNet:
        return WideResNet(
            replace(plan, activation=activation), num_classes, image_size, in_channels
        )

    return build


def _register(
    name: str, plan: Plan, about: str, paper: str = PAPER, published: float | None = None
) -> None:
    size = "tiny" if name.endswith("_tiny") else "published"
    add = MODELS.register(
        name,
        paper=paper,
        tags=("cnn", "wideresnet", size),
        about=about,
        published=published,
        sizes=Sizes(8),
    )
    add(factory_of(plan))


_register("wrn_28_10", Plan((4, 4, 4), widths(10, 10, 10)), "WideResNet-28-10")
_register("wrn_34_10", Plan((5, 5, 5), widths(10, 10, 10)), "WideResNet-34-10")
_register("wrn_34_12", Plan((5, 5, 5), widths(12, 12, 12)), "WideResNet-34-12", STAGES_PAPER, 66.46)
_register(
    "wrn_34_r",
    Plan((5, 5, 5), widths(10, 10, 4, gamma=2)),
    "WideResNet-34-R: twice as wide, with a narrow last stage",
    STAGES_PAPER,
    68.12,
)
_register(
    "wrn_tiny",
    Plan((1, 1, 1), (12, 24, 32), stem_channels=8, stem_stride=2),
    "one block per stage, 12 to 32 channels, stride-2 stem",
)

_NAME = re.compile(r"wrn_d(\d+)_(\d+)_(\d+)_w(\d+)_(\d+)_(\d+)(?:_g(\d+(?:\.\d+)?))?")


@PATTERNS.register(
    "wrn_dA-B-C_wX-Y-Z",
    paper=STAGES_PAPER,
    tags=("cnn", "wideresnet"),
    published=None,
    sizes=Sizes(8),
)
def by_stages(name: str) -> Factory | None:
    """WideResNet by depths and widths of its stages; ``_g1.5`` at the end scales all widths."""
    found = _NAME.fullmatch(name.lower().replace("-", "_"))
    if found is None:
        return None
    *numbers, gamma = found.groups()
    depths, factors = numbers[:3], numbers[3:]
    channels = widths(*map(float, factors), gamma=float(gamma or 1))
    return factory_of(Plan(tuple(map(int, depths)), channels))
