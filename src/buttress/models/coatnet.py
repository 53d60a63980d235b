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

from buttress.models.activations import Activation, activation_layer
from buttress.models.core import MODELS, PATTERNS, Factory, Sizes

PAPER = "arXiv:2106.04803"
SMALL = 64
SIZES = Sizes(16)


@dataclass(frozen=True)
class Plan:
    """The shape of a CoAtNet: letters, blocks and channels of its stages, stem and heads."""

    letters: str = "cctt"
    depths: tuple[int, ...] = (2, 3, 5, 2)
    channels: tuple[int, ...] = (96, 192, 384, 768)
    stem_channels: int = 64
    stem_stride: int = 2  # up to 64x64 images; 2 above
    heads: int = 8
    head_width: int = 32
    activation: Activation = "gelu"


MINI = Plan("cctt", (1, 2, 2, 1), (24, 40, 72, 112), 8, stem_stride=1, heads=4, head_width=16)
TINY = Plan("cctt", (1, 1, 1, 1), (12, 20, 32, 48), 6, stem_stride=1, heads=2, head_width=12)


class Excitation(nn.Module):
    """Scales each channel by a function of the mean of all (squeeze-and-excitation)."""

    def __init__(self, channels: int, hidden: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, hidden, 1, bias=False)
        self.act = act()
        self.excite = nn.Conv2d(hidden, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        return x * self.excite(self.act(self.squeeze(means))).sigmoid()


def _shortcut(inside: int, outside: int, stride: int) -> nn.Module:
    """Max-pooling and a 1x1 convolution where a stage begins."""
    if stride == 1:
        return nn.Identity()
    return nn.Sequential(nn.MaxPool2d(3, stride, 1), nn.Conv2d(inside, outside, 1, bias=False))


class ConvBlock(nn.Module):
    """C: an inverted bottleneck of four times the input's channels, strided in its first 1x1."""

    def __init__(self, inside: int, outside: int, stride: int, act: type[nn.Module]) -> None:
        super().__init__()
        hidden = 4 * inside
        self.shortcut = _shortcut(inside, outside, stride)
        self.branch = nn.Sequential(
            nn.BatchNorm2d(inside),
            nn.Conv2d(inside, hidden, 1, stride, bias=False),
            nn.BatchNorm2d(hidden),
            act(),
            nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            act(),
            Excitation(hidden, inside // 4, act),
            nn.Conv2d(hidden, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.branch(x)


class RelativeAttention(nn.Module):
    """Attention over a square map, with a learned bias per head and offset of two positions."""

    index: Tensor

    def __init__(self, inside: int, outside: int, side: int, plan: Plan) -> None:
        super().__init__()
        self.heads = plan.heads
        inner = plan.heads * plan.head_width
        self.qkv = nn.Linear(inside, 3 * inner, bias=False)
        self.proj = nn.Linear(inner, outside)
        self.table = nn.Parameter(torch.zeros((2 * side - 1) ** 2, plan.heads))
        self.register_buffer("index", offsets(side), persistent=False)

    def forward(self, x: Tensor) -> Tensor:  # (N, L, C)
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (N, heads, L, width) each
        bias = self.table[self.index].permute(2, 0, 1)  # (heads, L, L)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return self.proj(y.transpose(1, 2).flatten(2))


def offsets(side: int) -> Tensor:
    """(L, L): for each pair of positions of a square map, the row of its offset in the table."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    rows, columns = rows.flatten(), columns.flatten()
    down = rows[:, None] - rows[None, :] + side - 1
    right = columns[:, None] - columns[None, :] + side - 1
    return down * (2 * side - 1) + right


class TransformerBlock(nn.Module):
    """T: attention, then an MLP of four times the input's channels, both after a LayerNorm."""

    def __init__(self, inside: int, outside: int, stride: int, side: int, plan: Plan) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(3, stride, 1) if stride > 1 else nn.Identity()
        self.shortcut = _shortcut(inside, outside, stride)
        self.norm1 = nn.LayerNorm(inside)
        self.attn = RelativeAttention(inside, outside, side, plan)
        self.norm2 = nn.LayerNorm(outside)
        self.mlp = nn.Sequential(
            nn.Linear(outside, 4 * inside),
            activation_layer(plan.activation)(),
            nn.Linear(4 * inside, outside),
        )

    def forward(self, x: Tensor) -> Tensor:
        pooled, kept = self.pool(x), self.shortcut(x)
        tokens = self.attn(self.norm1(pooled.flatten(2).transpose(1, 2)))
        tokens = tokens + kept.flatten(2).transpose(1, 2)
        tokens = tokens + self.mlp(self.norm2(tokens))
        return tokens.transpose(1, 2).unflatten(2, tuple(kept.shape[2:]))


class CoAtNet(nn.Module):
    """The network of a plan, from images to logits."""

    def __init__(self, plan: Plan, num_classes: int, image_size: int, in_channels: int) -> None:
        super().__init__()
        act, width = activation_layer(plan.activation), plan.stem_channels
        stride = plan.stem_stride if image_size <= SMALL else 2
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            act(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
            act(),
        )
        side, inside, stages = -(-image_size // stride), width, []
        for letter, depth, outside in zip(plan.letters, plan.depths, plan.channels, strict=True):
            side = -(-side // 2)
            widths = [inside] + [outside] * (depth - 1)
            stages.append(nn.Sequential(*_blocks(letter, widths, outside, side, plan)))
            inside = outside
        self.stages = nn.Sequential(*stages)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inside, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stages(self.stem(x))))


def _blocks(letter: str, widths: list[int], outside: int, side: int, plan: Plan) -> list[nn.Module]:
    """The blocks of a stage; the first takes another width than the rest and halves the map."""
    strides = [2] + [1] * (len(widths) - 1)
    pairs = list(zip(widths, strides, strict=True))
    if letter == "t":
        return [TransformerBlock(inside, outside, stride, side, plan) for inside, stride in pairs]
    act = activation_layer(plan.activation)
    return [ConvBlock(inside, outside, stride, act) for inside, stride in pairs]


def factory_of(plan: Plan) -> Factory:
    """A factory for a plan; the activation stays a choice."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = plan.activation,
    ) -> CoAtNet:
        return CoAtNet(replace(plan, activation=activation), num_classes, image_size, in_channels)

    return build


def _register(name: str, plan: Plan, size: str, published: float | None = None) -> None:
    letters = plan.letters.upper()
    about = {
        "published": f"CoAtNet-0 with stages {letters}",
        "mini": f"stages {letters} of 1 or 2 blocks, 24 to 112 channels, full-resolution stem",
        "tiny": f"stages {letters} of one block, 12 to 48 channels, full-resolution stem",
    }[size]
    add = MODELS.register(
        name,
        paper=PAPER,
        # Without a T there is no attention: it is a convolutional network.
        tags=("hybrid" if "t" in plan.letters else "cnn", "coatnet", size),
        about=about,
        published=published,
        sizes=SIZES,
    )
    add(factory_of(plan))


PUBLISHED = {
    "cctt": 16.99,
    "cctc": 16.65,
    "cttt": 17.36,
    "cttc": 17.02,
    "cccc": 16.02,
    "ccct": 16.36,
    "ctcc": 16.38,
    "ctct": 16.73,
}
for _letters, _millions in PUBLISHED.items():
    _register(f"coatnet_{_letters}", Plan(_letters), "published", _millions)
    _register(f"coatnet_{_letters}_mini", replace(MINI, letters=_letters), "mini")
_register("coatnet_tiny", TINY, "tiny")

_NAME = re.compile(r"coatnet_([ct]{4})(_mini|_tiny)?")


@PATTERNS.register(
    "coatnet_XXXX", paper=PAPER, tags=("hybrid", "coatnet"), published=None, sizes=SIZES
)
def by_letters(name: str) -> Factory | None:
    """CoAtNet by a letter C or T for each stage; ``_mini`` or ``_tiny`` at the end shrinks it."""
    found = _NAME.fullmatch(name.strip().lower().replace("-", "_"))
    if found is None:
        return None
    letters, size = found.groups()
    plan = {"_mini": MINI, "_tiny": TINY}.get(size, Plan())
    return factory_of(replace(plan, letters=letters))
