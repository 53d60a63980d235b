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
from buttress.models.building_blocks import NARROW_INIT, Activation, InitSteps, activation_layer
from buttress.models.core import Classifier, ImageSizes
from buttress.models.families.vit import PatchSize, default_patch_size
from buttress.models.parts import Component
from buttress.models.variants import InputShape, ModelFamily, Variant

# Class attention is a stage of its own; the projection of Fourier positions is no convolution.
BLOCK_PATTERN = r"(?P<stage>blocks|cls_attn_blocks)\.\d+"
COMPONENTS: dict[str, Component] = {r"pos_embed\..*": "other"}


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
    drop_path: float = 0.0
    init: InitSteps = NARROW_INIT
    activation: Activation = "gelu"


def build_xcit(config: XCiTConfig, shape: InputShape) -> Xcit:
    net = Xcit(
        img_size=shape.image_size,
        patch_size=16,
        in_chans=shape.in_channels,
        num_classes=shape.num_classes,
        embed_dim=config.dim,
        depth=config.depth,
        num_heads=config.heads,
        eta=1.0,
        tokens_norm=config.tokens_norm,
        act_layer=activation_layer(config.activation),
        drop_path_rate=config.drop_path,
    )
    set_patch_size(net, config.patch or default_patch_size(shape.image_size))
    return net


XCIT_FAMILY = ModelFamily(
    "xcit", "arXiv:2106.09681", "transformer", ImageSizes(16, multiple=16), build_xcit,
    options=("activation", "patch", "drop_path"), attention="channels", components=COMPONENTS,
    block_pattern=BLOCK_PATTERN, published_shape={"num_classes": 1000, "image_size": 224},
)  # fmt: skip

XCIT_S12 = XCiTConfig(dim=384, depth=12, heads=8, init=())
XCIT_MINI = XCiTConfig(dim=48, depth=4, heads=4)

XCIT_FAMILY.register(
    Variant("xcit_n12", XCiTConfig(dim=128, depth=12, heads=4, tokens_norm=False, init=()),
            "twelve blocks of 128"),
    Variant("xcit_s12", XCIT_S12, "twelve blocks of width 384", published=26.25, is_rounded=True),
    Variant("xcit_m12", replace(XCIT_S12, dim=512), "twelve blocks of width 512", published=46,
            is_rounded=True),
    Variant("xcit_l12", replace(XCIT_S12, dim=768, heads=16), "twelve blocks of width 768",
            published=104, is_rounded=True),
    Variant("xcit_mini", XCIT_MINI, "four blocks of width 48"),
    Variant("xcit_s12_mini", replace(XCIT_MINI, dim=24), "to xcit_mini as S12 to L12: width 24"),
    Variant("xcit_m12_mini", replace(XCIT_MINI, dim=32), "to xcit_mini as M12 to L12: width 32"),
    Variant("xcit_tiny", XCiTConfig(dim=32, depth=1, heads=4, patch=8),
            "one block of width 32, patches of 8; for tests, not XCiT-T12"),
)  # fmt: skip
