"""CvT: Introducing Convolutions to Vision Transformers (Wu et al., arXiv:2103.15808).

Three stages of attention whose queries, keys and values come from depth-wise convolutions of the
map, keys and values with stride 2. No class token and no positions: the mean of the last map is
classified. Up to 64x64 images the first embedding is a 3x3 convolution of stride 2 (maps of 16, 8
and 4 at 32x32; the published count fixes the kernel, not the stride); above, the paper's 7x7 of
stride 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from buttress.models.building_blocks import Activation, activation_layer
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, Variant, global_pool


@dataclass(frozen=True)
class CvTConfig:
    """The shape of a CvT: channels, blocks and heads of its stages."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    head_width: int = 64
    mlp_ratio: int = 4
    activation: Activation = "gelu"


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of each position of a map."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class CvTAttention(nn.Module):
    """Attention over a map, with convolutional projections."""

    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads = heads
        inner = heads * head_width
        self.q = _projection(width, inner, 1)
        self.kv = _projection(width, 2 * inner, 2)
        self.proj = nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:  # (N, C, H, W)
        q, (k, v) = self.q(x), self.kv(x).chunk(2, 1)
        y = F.scaled_dot_product_attention(self._tokens(q), self._tokens(k), self._tokens(v))
        y = y.transpose(2, 3).flatten(1, 2).unflatten(2, tuple(x.shape[2:]))
        return self.proj(y)

    def _tokens(self, x: Tensor) -> Tensor:
        """(N, heads, L, width) from a map."""
        return x.flatten(2).unflatten(1, (self.heads, -1)).transpose(2, 3)


def _projection(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, in_channels, 3, stride, 1, groups=in_channels, bias=False),
        nn.BatchNorm2d(in_channels),
        nn.Conv2d(in_channels, out_channels, 1, bias=False),
    )


class CvTBlock(nn.Module):
    """Attention and an MLP, each after a norm."""

    def __init__(self, width: int, heads: int, config: CvTConfig) -> None:
        super().__init__()
        hidden = config.mlp_ratio * width
        self.norm1 = ChannelNorm(width)
        self.attn = CvTAttention(width, heads, config.head_width)
        self.norm2 = ChannelNorm(width)
        self.mlp = nn.Sequential(
            nn.Conv2d(width, hidden, 1),
            activation_layer(config.activation)(),
            nn.Conv2d(hidden, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def _embedding(in_channels: int, out_channels: int, kernel: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2)
    return nn.Sequential(conv, ChannelNorm(out_channels))


class CvT(nn.Module):
    """The network of a configuration, from images to logits."""

    def __init__(self, config: CvTConfig, shape: InputShape) -> None:
        super().__init__()
        kernel, stride = (3, 2) if shape.is_small else (7, 4)
        in_channels_stage = config.widths[0]
        self.stem = _embedding(shape.in_channels, in_channels_stage, kernel, stride)
        stages: list[nn.Module] = []
        for index, width in enumerate(config.widths):
            stage = nn.Sequential()
            if index:
                stage.add_module("embed", _embedding(in_channels_stage, width, 3, 2))
            blocks = [
                CvTBlock(width, config.heads[index], config) for _ in range(config.depths[index])
            ]
            stage.add_module("blocks", nn.Sequential(*blocks))
            stages.append(stage)
            in_channels_stage = width
        self.stages = nn.Sequential(*stages)
        self.pool = global_pool()
        self.head = nn.Linear(in_channels_stage, shape.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stages(self.stem(x))))


CVT_FAMILY = ModelFamily("cvt", "arXiv:2103.15808", "hybrid", ImageSizes(16), CvT)

CVT_FAMILY.register(
    Variant("cvt", CvTConfig((64, 192, 384), (1, 2, 10), (1, 3, 6)),
            "CvT-13: one, two and ten blocks, 64 to 384 channels.", published=19.54),
    Variant("cvt_mini", CvTConfig((24, 48, 80), (1, 2, 3), (1, 3, 5), head_width=16, mlp_ratio=2),
            "One, two and three blocks, 24 to 80 channels, heads of 16, MLPs of twice the width."),
    Variant("cvt_tiny", CvTConfig((8, 16, 32), (1, 1, 1), (1, 2, 4), head_width=8, mlp_ratio=2),
            "One block per stage, 8 to 32 channels, heads of 8, MLPs of twice the width."),
)  # fmt: skip
