"""BoTNet (Srinivas et al., arXiv:2101.11605): a ResNet with attention in its last stage.

timm's ResNet-50 in which attention over all positions takes the place of the 3x3 convolutions of
the last stage. The published count fixes four heads, queries, keys and values with biases, no
output projection, biases in the 1x1 shortcuts; the stem it leaves open, and the one for small
images is taken (3x3, no pooling, up to 64x64), so that attention sees 8x8, 4x4 and 4x4 maps.
Attention is not scaled. Departure from common code: positions start with variance 1 / channels of
a head, as queries and keys do, not 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from timm.models.resnet import ResNet
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.models.building_blocks import Activation
from buttress.models.core import ImageSizes
from buttress.models.families.resnet import ResNetConfig, build_resnet
from buttress.models.variants import InputShape, ModelFamily, Variant

HEADS = 4


class BotNetAttention(nn.Module):
    r"""Attention between all positions of a map, with learned positions of rows and columns.

    .. math:: \mathrm{softmax}(q^\top (k + r_h + r_w))\, v

    With a stride of 2, average pooling follows.
    """

    def __init__(self, channels: int, side: int, stride: int) -> None:
        super().__init__()
        per_head = channels // HEADS
        self.query = nn.Conv2d(channels, channels, 1)
        self.key = nn.Conv2d(channels, channels, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.rows = nn.Parameter(torch.empty(HEADS, per_head, side, 1))
        self.columns = nn.Parameter(torch.empty(HEADS, per_head, 1, side))
        self.pool = nn.AvgPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()
        for positions in (self.rows, self.columns):
            nn.init.normal_(positions, std=per_head**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._heads(self.query(x)), self._heads(self.key(x)), self._heads(self.value(x))
        positions = self._heads((self.rows + self.columns).flatten(0, 1)[None])
        out = F.scaled_dot_product_attention(q, k + positions, v, scale=1.0)  # (N, heads, H * W, C)
        return self.pool(out.transpose(2, 3).reshape(x.shape))

    def _heads(self, maps: Tensor) -> Tensor:
        """(N, C, H, W) to (N, heads, H * W, channels of a head)."""
        return maps.flatten(2).unflatten(1, (HEADS, -1)).transpose(2, 3)


def add_attention(net: ResNet, side: int) -> None:
    """Turns a ResNet of bottlenecks into a BoTNet, in place; ``side`` is that of its third maps."""
    for block in net.layer4:
        stride = block.conv2.stride[0]
        block.conv2 = BotNetAttention(block.conv2.in_channels, side, stride)
        side = -(-side // stride)
    for name, module in net.named_modules():
        if name.endswith("downsample.0"):
            module.bias = nn.Parameter(torch.zeros(module.out_channels))


@dataclass(frozen=True)
class BotNetConfig:
    """A ResNet of bottlenecks, and the dropout before the classifier."""

    resnet: ResNetConfig
    dropout: float = 0.0
    activation: Activation = "relu"


def build_botnet(config: BotNetConfig, shape: InputShape) -> ResNet:
    resnet = replace(config.resnet, activation=config.activation)
    net = build_resnet(resnet, shape)
    stem_stride = resnet.stem_stride if shape.is_small else 4
    add_attention(net, side=math.ceil(shape.image_size / (4 * stem_stride)))
    net.drop_rate = config.dropout
    return net


BOTNET_FAMILY = ModelFamily(
    "botnet", "arXiv:2101.11605", "hybrid", ImageSizes(8), build_botnet,
    options=("activation", "dropout"),
)  # fmt: skip

BOTNET_FAMILY.register(
    Variant("botnet", BotNetConfig(ResNetConfig((3, 4, 6, 3), (64, 128, 256, 512)), dropout=0.3),
            "ResNet-50 with attention in its last stage", published=18.82),
    Variant("botnet_mini",
            BotNetConfig(ResNetConfig((1, 2, 3, 2), (8, 16, 32, 48), stem_channels=16)),
            "1, 2 and 3 bottlenecks of 8 to 32 channels, then 2 with attention of 48"),
    Variant("botnet_tiny",
            BotNetConfig(
                ResNetConfig((1, 1, 1, 2), (4, 8, 16, 24), stem_channels=8, stem_stride=2)),
            "1, 1 and 1 bottlenecks of 4 to 16 channels, then 2 with attention of 24"),
)  # fmt: skip
