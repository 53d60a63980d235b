"""ViTAE: Vision Transformer Advanced by Exploring Intrinsic Inductive Bias (arXiv:2106.03348).

Three reduction cells make tokens from parallel dilated convolutions; normal cells follow, with a
convolutional branch beside their attention. The first two reduction cells attend in linear time, by
random features (Performer, arXiv:2009.14794, in the form of arXiv:2101.11986: one head, and values
take the place of the residual). No class token, no positions, no last norm: the mean of the tokens
is classified. This is ViTAE-S as first released, token widths 64, 64 and 384, with the paper's
strides of 4, 2 and 2 at every size: 2x2 tokens at the end of a 32x32 image, 14x14 at 224x224. The
published count is that with 1000 classes.

Departure in numerics alone: the exponents of the random features are shifted by their maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from timm.models.vision_transformer import Attention
from torch import Tensor, nn

from buttress.models.building_blocks import (
    Activation,
    activation_layer,
    initialize_linear_layers,
    mlp,
)
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, Variant, global_pool


@dataclass(frozen=True)
class ReductionConfig:
    """The shape of a reduction cell."""

    channels: int  # of each parallel convolution
    width: int  # of its tokens
    kernel: int
    stride: int
    dilations: int  # 1, 2, ... as many
    attends: bool = True


@dataclass(frozen=True)
class ViTAEConfig:
    """The shape of a ViTAE; the normal cells follow the last reduction."""

    reductions: tuple[ReductionConfig, ...]
    depth: int
    heads: int
    is_narrow: bool = False  # drawn for widths far below those of the paper
    activation: Activation | None = None  # None: SiLU in convolutional branches, GELU elsewhere

    @property
    def act(self) -> type[nn.Module]:
        return activation_layer(self.activation or "gelu")

    @property
    def conv_act(self) -> type[nn.Module]:
        return activation_layer(self.activation or "silu")


def map_to_tokens(x: Tensor) -> Tensor:
    """(N, L, C) from a map."""
    return x.flatten(2).transpose(1, 2)


def tokens_to_map(tokens: Tensor, like: Tensor) -> Tensor:
    """(N, C, H, W), with height and width of another map."""
    return tokens.transpose(1, 2).unflatten(2, tuple(like.shape[2:]))


def _conv(
    in_channels: int,
    out_channels: int,
    act: type[nn.Module],
    stride: int = 1,
    groups: int = 1,
    has_norm: bool = True,
) -> list[nn.Module]:
    """A 3x3 convolution of a parallel convolutional module (PCM), with what follows it."""
    norm = [nn.BatchNorm2d(out_channels)] if has_norm else []
    return [nn.Conv2d(in_channels, out_channels, 3, stride, 1, groups=groups), *norm, act()]


class PyramidReduction(nn.Module):
    """The pyramid reduction module (PRM): convolutions of growing dilation, side by side."""

    def __init__(self, in_channels: int, config: ReductionConfig, act: type[nn.Module]) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for dilation in range(1, config.dilations + 1):
            span = (config.kernel - 1) * dilation + 1
            padding = -((config.stride - span) // 2)  # half of the overlap, rounded up
            self.convs.append(
                nn.Conv2d(
                    in_channels, config.channels, config.kernel, config.stride, padding, dilation
                )
            )
        self.act = act()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.act(conv(x)) for conv in self.convs], 1)


class PerformerAttention(nn.Module):
    """Attention with one head in linear time: positive random features in place of the softmax."""

    features: Tensor

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(in_channels, 3 * width)
        self.proj = nn.Linear(width, width)
        directions = torch.empty(width // 2, width)  # orthogonal, never trained
        self.register_buffer("features", nn.init.orthogonal_(directions, gain=(width // 2) ** 0.5))

    def forward(self, x: Tensor) -> Tensor:  # (N, L, C)
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = self._log_features(q), self._log_features(k)
        # A factor per query, or one for all keys, cancels in the quotient.
        q = (q - q.detach().amax(2, keepdim=True)).exp()
        k = (k - k.detach().amax((1, 2), keepdim=True)).exp()
        total = q @ k.sum(1).unsqueeze(2)  # (N, L, 1)
        y = q @ (k.transpose(1, 2) @ v) / (total + 1e-8)
        return v + self.proj(y)

    def _log_features(self, x: Tensor) -> Tensor:
        return x @ self.features.T - x.square().sum(2, keepdim=True) / 2


class ReductionCell(nn.Module):
    """A smaller map of tokens: PRM, then attention plus PCM, then an MLP; or the PRM alone."""

    def __init__(self, in_channels: int, cell: ReductionConfig, config: ViTAEConfig) -> None:
        super().__init__()
        self.prm = PyramidReduction(in_channels, cell, config.act)
        self.attends = cell.attends
        if not cell.attends:
            return
        gathered, width = cell.channels * cell.dilations, cell.width
        halvings = cell.stride.bit_length() - 1
        strides = [2] * halvings + [1] * (3 - halvings)
        self.pcm = nn.Sequential(
            *_conv(in_channels, cell.channels, config.conv_act, strides[0], has_norm=False),
            *_conv(cell.channels, cell.channels, config.conv_act, strides[1]),
            *_conv(cell.channels, width, config.conv_act, strides[2], has_norm=False),
        )
        self.norm1 = nn.LayerNorm(gathered)
        self.attn = PerformerAttention(gathered, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width, width, config.act)

    def forward(self, x: Tensor) -> Tensor:
        y = self.prm(x)
        if not self.attends:
            return y
        tokens = self.attn(self.norm1(map_to_tokens(y))) + map_to_tokens(self.pcm(x))
        return tokens_to_map(tokens + self.mlp(self.norm2(tokens)), y)


class NormalCell(nn.Module):
    """Attention beside convolutions in groups of four channels, then an MLP of three widths."""

    def __init__(self, width: int, config: ViTAEConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, config.heads, qkv_bias=True)
        groups = width // 4
        self.pcm = nn.Sequential(
            *_conv(width, 3 * width, config.conv_act, groups=groups),
            *_conv(3 * width, width, config.conv_act, groups=groups),
            *_conv(width, width, config.conv_act, groups=groups, has_norm=False),
        )
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width, 3 * width, config.act)

    def forward(self, x: Tensor) -> Tensor:
        tokens = map_to_tokens(x)
        tokens = tokens + self.attn(self.norm1(tokens)) + map_to_tokens(self.pcm(x))
        return tokens_to_map(tokens + self.mlp(self.norm2(tokens)), x)


class ViTAE(nn.Module):
    """The network of a configuration, from images to logits."""

    def __init__(self, config: ViTAEConfig, shape: InputShape) -> None:
        super().__init__()
        stages, inside = [], shape.in_channels
        for cell in config.reductions:
            stages.append(nn.Sequential(ReductionCell(inside, cell, config)))
            inside = cell.width
        stages[-1].extend(NormalCell(inside, config) for _ in range(config.depth))
        self.stages = nn.Sequential(*stages)
        self.pool = global_pool()
        self.head = nn.Linear(inside, shape.num_classes)
        self._initialize(config.is_narrow)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stages(x)))

    def _initialize(self, is_narrow: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv2d) and is_narrow:
                # No norm follows most of them: torch's own start shrinks a token to nothing.
                nn.init.kaiming_normal_(module.weight)
        if is_narrow:
            initialize_linear_layers(self)


VITAE_S = ViTAEConfig(
    (ReductionConfig(64, 64, kernel=7, stride=4, dilations=4),
     ReductionConfig(64, 64, kernel=3, stride=2, dilations=3),
     ReductionConfig(192, 384, kernel=3, stride=2, dilations=2, attends=False)),
    depth=14, heads=6,
)  # fmt: skip
MINI = ViTAEConfig(
    (ReductionConfig(8, 24, kernel=7, stride=2, dilations=4),
     ReductionConfig(16, 32, kernel=3, stride=2, dilations=3),
     ReductionConfig(36, 72, kernel=3, stride=2, dilations=2, attends=False)),
    depth=3, heads=4, is_narrow=True,
)  # fmt: skip
TINY = ViTAEConfig(
    (ReductionConfig(4, 16, kernel=7, stride=4, dilations=4),
     ReductionConfig(8, 24, kernel=3, stride=2, dilations=3),
     ReductionConfig(20, 40, kernel=3, stride=1, dilations=2, attends=False)),
    depth=1, heads=4, is_narrow=True,
)  # fmt: skip

VITAE_FAMILY = ModelFamily(
    "vitae",
    "arXiv:2106.03348",
    "hybrid",
    ImageSizes(16, multiple=16),
    ViTAE,
    components={r"stages\.0\.0\.(prm\.convs\.\d+|pcm\.0)\..*": "stem"},  # what reads the image
    published_shape={"num_classes": 1000},
)

VITAE_FAMILY.register(
    Variant("vitae", VITAE_S, "ViTAE-S: fourteen normal cells of width 384", published=23.18),
    Variant("vitae_mini", MINI, "three normal cells of width 72 over 4x4 tokens"),
    Variant("vitae_tiny", TINY, "one normal cell of width 40 over 4x4 tokens"),
)
