"""LeViT: a Vision Transformer in ConvNet's Clothing for Faster Inference (arXiv:2104.01136).

The network is timm's. Four convolutions make the tokens; three stages of attention with learned
biases follow, shrunk by attention with subsampled queries in between; BatchNorm follows every
linear map. Up to 64x64 images the first two convolutions have stride 1, not 2: 8x8, 4x4 and 2x2
tokens at 32x32, and the paper's 14x14, 7x7 and 4x4 at 224x224. The published count does not
determine the network; timm's LeViT-128S with one head is 5% larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from timm.models.levit import Attention, AttentionDownsample, Levit, Stem16
from torch import Tensor, nn

from buttress.models.building_blocks import (
    Activation,
    InitSteps,
    activation_layer,
    initialize_linear_layers,
)
from buttress.models.core import ImageSizes
from buttress.models.variants import InputShape, ModelFamily, Variant

# The attention that shrinks the map, with its MLP, is the first block of the later stages.
BLOCK_PATTERN = r"stages\.(?P<stage>0(?=\.blocks)|[1-9])\.(downsample|blocks\.\d+)"

LevitActivation = Activation | Literal["hard_swish"]


def initialize_branches(net: Levit) -> None:
    """Lets every branch contribute from the first step, where timm's start at zero.

    For tests of gradients. Larger networks do not learn from adversarial examples so.
    """
    initialize_linear_layers(net)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.ones_(module.weight)


@dataclass(frozen=True)
class LeViTConfig:
    """The shape of a LeViT: widths, blocks and heads of its stages, width of a key."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    key_width: int = 16
    init: InitSteps = (initialize_branches,)
    activation: LevitActivation = "hard_swish"


class UncachedBiases:
    """Attention biases that are looked up in every forward pass.

    timm caches them in evaluation mode until the next training: loaded weights would have no
    effect, and a second backward pass would fail.
    """

    attention_biases: Tensor
    attention_bias_idxs: Tensor

    def get_attention_biases(self, device: torch.device) -> Tensor:
        return self.attention_biases[:, self.attention_bias_idxs]


class UncachedAttention(UncachedBiases, Attention):  # type: ignore[misc]  # timm has no types
    """Attention within a stage."""


class UncachedDownsample(UncachedBiases, AttentionDownsample):  # type: ignore[misc]
    """Attention between stages."""


def build_levit(config: LeViTConfig, shape: InputShape) -> Levit:
    name = config.activation
    act = nn.Hardswish if name == "hard_swish" else activation_layer(name)
    stem = Stem16(shape.in_channels, config.widths[0], act_layer=act)
    if shape.is_small:
        stem.conv1.linear.stride = stem.conv2.linear.stride = (1, 1)
        stem.stride = 4
    net = Levit(
        img_size=shape.image_size,
        num_classes=shape.num_classes,
        in_chans=shape.in_channels,
        embed_dim=config.widths,
        key_dim=config.key_width,
        depth=config.depths,
        num_heads=config.heads,
        stem_backbone=stem,
        stem_stride=stem.stride,
        act_layer=act,
    )
    for module in net.modules():
        if isinstance(module, Attention):
            module.__class__ = UncachedAttention
        elif isinstance(module, AttentionDownsample):
            module.__class__ = UncachedDownsample
    return net


LEVIT_FAMILY = ModelFamily(
    "levit", "arXiv:2104.01136", "hybrid", ImageSizes(16, multiple=16), build_levit,
    block_pattern=BLOCK_PATTERN,
)  # fmt: skip

LEVIT_FAMILY.register(
    Variant("levit", LeViTConfig((128, 256, 384), (2, 3, 4), (4, 6, 8), init=()),
            "LeViT-128S: two, three and four blocks, 128 to 384 channels.", published=6.67,
            tolerance=0.055),
    Variant("levit_mini", LeViTConfig((48, 72, 96), (1, 2, 2), (2, 3, 4), key_width=12, init=()),
            "One, two and two blocks, 48 to 96 channels, keys of 12."),
    Variant("levit_tiny", LeViTConfig((16, 24, 32), (1, 1, 1), (2, 2, 2), key_width=8),
            "One block per stage, 16 to 32 channels, keys of 8."),
)  # fmt: skip
