"""XCiT (El-Nouby et al., arXiv:2106.09681) on timm: attention between channels, not tokens.

Blocks of cross-covariance attention, local patch interaction (two 3x3 depth-wise convolutions) and
an MLP, then two blocks of class attention. A stem of four 3x3 convolutions makes patches of 16.
Smaller patches keep every parameter and take strides away, as in arXiv:2209.07399: patches of 4 at
32x32 and of 16 at 224x224, unless `patch` says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from timm.models.xcit import Xcit
from torch import nn

from buttress.errors import UserError
from buttress.models.building_blocks import (
    Activation,
    activation_layer,
    initialize_linear_layers,
    scale_residual_branches,
)
from buttress.models.core import MODELS, Classifier, Factory, ImageSizes
from buttress.models.families.vit import PatchSize, default_patch_size

PAPER = "arXiv:2106.09681"

# Class attention is a stage of its own; the projection of Fourier positions is no convolution.
BLOCK_PATTERN = r"(?P<stage>blocks|cls_attn_blocks)\.\d+"
COMPONENTS = {r"pos_embed\..*": "other"}


def set_patch_size(model: nn.Module, patch: int) -> None:
    """Makes patches of ``patch`` pixels in an XCiT, in place, with weights or without.

    The stem halves the image once per convolution, down to patches of p' = 16 (or 8); the first
    log2(p' / patch) strides become 1. No parameter changes, so pretrained weights fit.
    """
    net = model.net if isinstance(model, Classifier) else model
    if not isinstance(net, Xcit):
        raise UserError(f"the model must be an XCiT, but got {type(net).__name__}")
    embedding = net.patch_embed
    convolutions = [layer for layer in embedding.proj.modules() if isinstance(layer, nn.Conv2d)]
    possible = [2**halvings for halvings in range(len(convolutions) + 1)]
    if patch not in possible:
        raise UserError(f"patch must be one of {', '.join(map(str, possible))}, but got {patch}")
    num_strided = possible.index(patch)
    for position, convolution in enumerate(reversed(convolutions)):
        stride = 2 if position < num_strided else 1
        convolution.stride = (stride, stride)
    height, width = embedding.img_size
    embedding.patch_size = patch
    embedding.num_patches = (height // patch) * (width // patch)


@dataclass(frozen=True)
class XCiTConfig:
    """Width, depth without the class attention, and heads; a patch if the size does not decide."""

    dim: int
    depth: int
    heads: int
    tokens_norm: bool = True
    patch: PatchSize | None = None
    init: bool = False


def register_variants(config: XCiTConfig) -> Factory:
    """A factory for a plan; activation, patch and drop-path stay choices."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = "gelu",
        patch: PatchSize | None = config.patch,
        drop_path: float = 0.0,
    ) -> Xcit:
        net = Xcit(
            img_size=image_size,
            patch_size=16,
            in_chans=in_channels,
            num_classes=num_classes,
            embed_dim=config.dim,
            depth=config.depth,
            num_heads=config.heads,
            eta=1.0,
            tokens_norm=config.tokens_norm,
            act_layer=activation_layer(activation),
            drop_path_rate=drop_path,
        )
        if config.init:
            initialize_linear_layers(net)
            scale_residual_branches(net)
        set_patch_size(net, patch or default_patch_size(image_size))
        return net

    return build


def register_variant(
    name: str, plan: XCiTConfig, about: str, published: float | None = None
) -> None:
    size = name.rpartition("_")[2]
    add = MODELS.register(
        name,
        paper=PAPER,
        tags=("transformer", "xcit", size if size in ("mini", "tiny") else "published"),
        summary=about,
        published=published,
        published_for={"num_classes": 1000, "image_size": 224},
        sizes=ImageSizes(16, multiple=16),
        blocks=BLOCK_PATTERN,
        components=COMPONENTS,
    )
    add(register_variants(plan))


XCIT_S12 = XCiTConfig(dim=384, depth=12, heads=8)
register_variant(
    "xcit_n12", XCiTConfig(dim=128, depth=12, heads=4, tokens_norm=False), "twelve blocks of 128"
)
register_variant("xcit_s12", XCIT_S12, "twelve blocks of width 384", published=26.25)
register_variant("xcit_m12", replace(XCIT_S12, dim=512), "twelve blocks of width 512", published=46)
register_variant(
    "xcit_l12", replace(XCIT_S12, dim=768, heads=16), "twelve blocks of width 768", published=104
)
XCIT_MINI = XCiTConfig(dim=48, depth=4, heads=4, init=True)
register_variant("xcit_mini", XCIT_MINI, "four blocks of width 48")
register_variant(
    "xcit_s12_mini", replace(XCIT_MINI, dim=24), "to xcit_mini as S12 to L12: width 24"
)
register_variant(
    "xcit_m12_mini", replace(XCIT_MINI, dim=32), "to xcit_mini as M12 to L12: width 32"
)
register_variant(
    "xcit_tiny",
    XCiTConfig(dim=32, depth=1, heads=4, patch=8, init=True),
    "one block of width 32, patches of 8; for tests, not XCiT-T12",
)
