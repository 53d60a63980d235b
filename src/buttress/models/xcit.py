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
from buttress.models.activations import Activation, activation_layer
from buttress.models.core import MODELS, Classifier, Factory, Sizes
from buttress.models.initialise import quieten_branches, scale_to_width
from buttress.models.vit import Patch, patch_for

PAPER = "arXiv:2106.09681"

# Class attention is a stage of its own; the projection of Fourier positions is no convolution.
BLOCKS = r"(?P<stage>blocks|cls_attn_blocks)\.\d+"
COMPONENTS = {r"pos_embed\..*": "other"}


def adapt_patch_embedding(xcit: nn.Module, patch: int) -> None:
    """Makes patches of ``patch`` pixels in an XCiT, in place, with weights or without.

    The stem halves the image once per convolution, down to patches of p' = 16 (or 8); the first
    log2(p' / patch) strides become 1. No parameter changes, so pretrained weights fit.
    """
    net = xcit.net if isinstance(xcit, Classifier) else xcit
    if not isinstance(net, Xcit):
        raise UserError(f"the model must be an XCiT, but got {type(net).__name__}")
    embedding = net.patch_embed
    convolutions = [layer for layer in embedding.proj.modules() if isinstance(layer, nn.Conv2d)]
    possible = [2**halvings for halvings in range(len(convolutions) + 1)]
    if patch not in possible:
        raise UserError(f"patch must be one of {', '.join(map(str, possible))}, but got {patch}")
    kept = possible.index(patch)
    for position, convolution in enumerate(reversed(convolutions)):
        stride = 2 if position < kept else 1
        convolution.stride = (stride, stride)
    height, width = embedding.img_size
    embedding.patch_size = patch
    embedding.num_patches = (height // patch) * (width // patch)


@dataclass(frozen=True)
class Plan:
    """Width, depth without the class attention, and heads; a patch if the size does not decide."""

    dim: int
    depth: int
    heads: int
    tokens_norm: bool = True
    patch: Patch | None = None
    is_narrow: bool = False


def factory_of(plan: Plan) -> Factory:
    """A factory for a plan; activation, patch and drop-path stay choices."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = "gelu",
        patch: Patch | None = plan.patch,
        drop_path: float = 0.0,
    ) -> Xcit:
        net = Xcit(
            img_size=image_size,
            patch_size=16,
            in_chans=in_channels,
            num_classes=num_classes,
            embed_dim=plan.dim,
            depth=plan.depth,
            num_heads=plan.heads,
            eta=1.0,
            tokens_norm=plan.tokens_norm,
            act_layer=activation_layer(activation),
            drop_path_rate=drop_path,
        )
        if plan.is_narrow:
            scale_to_width(net)
            quieten_branches(net)
        adapt_patch_embedding(net, patch or patch_for(image_size))
        return net

    return build


def _register(name: str, plan: Plan, about: str, published: float | None = None) -> None:
    size = name.rpartition("_")[2]
    add = MODELS.register(
        name,
        paper=PAPER,
        tags=("transformer", "xcit", size if size in ("mini", "tiny") else "published"),
        about=about,
        published=published,
        published_for={"num_classes": 1000, "image_size": 224},
        sizes=Sizes(16, multiple=16),
        blocks=BLOCKS,
        components=COMPONENTS,
    )
    add(factory_of(plan))


_S12 = Plan(dim=384, depth=12, heads=8)
_register("xcit_n12", Plan(dim=128, depth=12, heads=4, tokens_norm=False), "twelve blocks of 128")
_register("xcit_s12", _S12, "twelve blocks of width 384", published=26.25)
_register("xcit_m12", replace(_S12, dim=512), "twelve blocks of width 512", published=46)
_register("xcit_l12", replace(_S12, dim=768, heads=16), "twelve blocks of width 768", published=104)
_MINI = Plan(dim=48, depth=4, heads=4, is_narrow=True)
_register("xcit_mini", _MINI, "four blocks of width 48")
_register("xcit_s12_mini", replace(_MINI, dim=24), "to xcit_mini as S12 to L12: width 24")
_register("xcit_m12_mini", replace(_MINI, dim=32), "to xcit_mini as M12 to L12: width 32")
_register(
    "xcit_tiny",
    Plan(dim=32, depth=1, heads=4, patch=8, is_narrow=True),
    "one block of width 32, patches of 8; for tests, not XCiT-T12",
)
