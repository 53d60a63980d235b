"""CoAtNet: Marrying Convolution and Attention for All Data Sizes (Dai et al., arXiv:2106.04803).

Each of the four stages has a letter, as in the study of arXiv:2209.14105: C is a stage of inverted
bottlenecks with squeeze-and-excitation, T a stage of attention with learned relative positions.
The first block of a stage halves the map. The published networks halve five times, so that a 32x32
image ends as one position, where attention is a linear map and its queries and keys learn nothing;
the small variants start at full resolution up to 64x64 images and end with 2x2 positions. Tables
of relative positions follow from the image size; the published counts are those at 32x32.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.models.building_blocks import Activation, activation_layer, mlp
from buttress.models.core import PATTERNS, Factory, ImageSizes
from buttress.models.variants import InputShape, ModelCategory, ModelFamily, Variant, global_pool


@dataclass(frozen=True)
class CoAtNetConfig:
    """The shape of a CoAtNet: letters, blocks and channels of its stages, stem and heads."""

    letters: str = "cctt"
    depths: tuple[int, ...] = (2, 3, 5, 2)
    channels: tuple[int, ...] = (96, 192, 384, 768)
    stem_channels: int = 64
    stem_stride: int = 2  # up to 64x64 images; 2 above
    heads: int = 8
    head_width: int = 32
    activation: Activation = "gelu"


MINI = CoAtNetConfig(
    "cctt", (1, 2, 2, 1), (24, 40, 72, 112), 8, stem_stride=1, heads=4, head_width=16
)
TINY = CoAtNetConfig(
    "cctt", (1, 1, 1, 1), (12, 20, 32, 48), 6, stem_stride=1, heads=2, head_width=12
)


class SqueezeExcitation(nn.Module):
    """Scales each channel by a function of the mean of all (squeeze-and-excitation)."""

    def __init__(self, channels: int, hidden: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, hidden, 1, bias=False)
        self.act = act()
        self.excite = nn.Conv2d(hidden, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        return x * self.excite(self.act(self.squeeze(means))).sigmoid()


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Max-pooling and a 1x1 convolution where a stage begins."""
    if stride == 1:
        return nn.Identity()
    return nn.Sequential(
        nn.MaxPool2d(3, stride, 1), nn.Conv2d(in_channels, out_channels, 1, bias=False)
    )


class CoAtNetConvBlock(nn.Module):
    """C: an inverted bottleneck of four times the input's channels, strided in its first 1x1."""

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, act: type[nn.Module]
    ) -> None:
        super().__init__()
        hidden = 4 * in_channels
        self.shortcut = _shortcut(in_channels, out_channels, stride)
        self.branch = nn.Sequential(
            nn.BatchNorm2d(in_channels),
            nn.Conv2d(in_channels, hidden, 1, stride, bias=False),
            nn.BatchNorm2d(hidden),
            act(),
            nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            act(),
            SqueezeExcitation(hidden, in_channels // 4, act),
            nn.Conv2d(hidden, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.branch(x)


class CoAtNetAttention(nn.Module):
    """Attention over a square map, with a learned bias per head and offset of two positions."""

    index: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, side: int, config: CoAtNetConfig
    ) -> None:
        super().__init__()
        self.heads = config.heads
        inner = config.heads * config.head_width
        self.qkv = nn.Linear(in_channels, 3 * inner, bias=False)
        self.proj = nn.Linear(inner, out_channels)
        self.table = nn.Parameter(torch.zeros((2 * side - 1) ** 2, config.heads))
        self.register_buffer("index", relative_position_index(side), persistent=False)

    def forward(self, x: Tensor) -> Tensor:  # (N, L, C)
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (N, heads, L, width) each
        bias = self.table[self.index].permute(2, 0, 1)  # (heads, L, L)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return self.proj(y.transpose(1, 2).flatten(2))


def relative_position_index(side: int) -> Tensor:
    """(L, L): for each pair of positions of a square map, the row of its offset in the table."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    rows, columns = rows.flatten(), columns.flatten()
    down = rows[:, None] - rows[None, :] + side - 1
    right = columns[:, None] - columns[None, :] + side - 1
    return down * (2 * side - 1) + right


class CoAtNetTransformerBlock(nn.Module):
    """T: attention, then an MLP of four times the input's channels, both after a LayerNorm."""

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, side: int, config: CoAtNetConfig
    ) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(3, stride, 1) if stride > 1 else nn.Identity()
        self.shortcut = _shortcut(in_channels, out_channels, stride)
        self.norm1 = nn.LayerNorm(in_channels)
        self.attn = CoAtNetAttention(in_channels, out_channels, side, config)
        self.norm2 = nn.LayerNorm(out_channels)
        self.mlp = mlp(out_channels, 4 * in_channels, activation_layer(config.activation))

    def forward(self, x: Tensor) -> Tensor:
        pooled, shortcut = self.pool(x), self.shortcut(x)
        tokens = self.attn(self.norm1(pooled.flatten(2).transpose(1, 2)))
        tokens = tokens + shortcut.flatten(2).transpose(1, 2)
        tokens = tokens + self.mlp(self.norm2(tokens))
        return tokens.transpose(1, 2).unflatten(2, tuple(shortcut.shape[2:]))


class CoAtNet(nn.Module):
    """The network of a configuration, from images to logits."""

    def __init__(self, config: CoAtNetConfig, shape: InputShape) -> None:
        super().__init__()
        act, width = activation_layer(config.activation), config.stem_channels
        stride = config.stem_stride if shape.is_small else 2
        self.stem = nn.Sequential(
            nn.Conv2d(shape.in_channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            act(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
            act(),
        )
        side, inside, stages = -(-shape.image_size // stride), width, []
        for letter, depth, outside in zip(
            config.letters, config.depths, config.channels, strict=True
        ):
            side = -(-side // 2)
            widths = [inside] + [outside] * (depth - 1)
            stages.append(nn.Sequential(*_build_stage(letter, widths, outside, side, config)))
            inside = outside
        self.stages = nn.Sequential(*stages)
        self.pool = global_pool()
        self.head = nn.Linear(inside, shape.num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stages(self.stem(x))))


def _build_stage(
    letter: str, widths: list[int], out_channels: int, side: int, config: CoAtNetConfig
) -> list[nn.Module]:
    """The blocks of a stage; the first takes another width than the rest and halves the map."""
    strides = [2] + [1] * (len(widths) - 1)
    pairs = list(zip(widths, strides, strict=True))
    if letter == "t":
        return [
            CoAtNetTransformerBlock(inside, out_channels, stride, side, config)
            for inside, stride in pairs
        ]
    act = activation_layer(config.activation)
    return [CoAtNetConvBlock(inside, out_channels, stride, act) for inside, stride in pairs]


COATNET_FAMILY = ModelFamily("coatnet", "arXiv:2106.04803", "hybrid", ImageSizes(16), CoAtNet)

PUBLISHED_MILLIONS = {
    "cctt": 16.99,
    "cctc": 16.65,
    "cttt": 17.36,
    "cttc": 17.02,
    "cccc": 16.02,
    "ccct": 16.36,
    "ctcc": 16.38,
    "ctct": 16.73,
}

for _letters, _millions in PUBLISHED_MILLIONS.items():
    # Without a T there is no attention: it is a convolutional network.
    _category: ModelCategory = "hybrid" if "t" in _letters else "cnn"
    _stages = f"stages {_letters.upper()}"
    COATNET_FAMILY.register(
        Variant(f"coatnet_{_letters}", CoAtNetConfig(_letters), f"CoAtNet-0 with {_stages}",
                published=_millions, category=_category),
        Variant(f"coatnet_{_letters}_mini", replace(MINI, letters=_letters),
                f"{_stages} of 1 or 2 blocks, 24 to 112 channels, full-resolution stem",
                category=_category),
    )  # fmt: skip
COATNET_FAMILY.register(
    Variant("coatnet_tiny", TINY,
            "stages CCTT of one block, 12 to 48 channels, full-resolution stem"),
)  # fmt: skip


_NAME = re.compile(r"coatnet_([ct]{4})(_mini|_tiny)?")


@PATTERNS.register(
    "coatnet_XXXX",
    paper=COATNET_FAMILY.paper,
    tags=("hybrid", "coatnet"),
    published=None,
    sizes=COATNET_FAMILY.image_sizes,
)
def parse_coatnet_name(name: str) -> Factory | None:
    """CoAtNet by a letter C or T for each stage; ``_mini`` or ``_tiny`` at the end shrinks it."""
    match = _NAME.fullmatch(name.strip().lower().replace("-", "_"))
    if match is None:
        return None
    letters, size = match.groups()
    config = {"_mini": MINI, "_tiny": TINY}.get(size, CoAtNetConfig())
    return COATNET_FAMILY.factory(replace(config, letters=letters))
