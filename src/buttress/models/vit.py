"""Vision transformer (Dosovitskiy et al., arXiv:2010.11929) on timm, for 32x32 images.

Departure from the network behind the published count: attention is scaled by the width of a head
(64^-0.5), as in the paper, not by the width of the whole (512^-0.5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from timm.models.vision_transformer import VisionTransformer
from torch import nn

from buttress.models.activations import Activation, swap_activation
from buttress.models.core import MODELS, Factory, Sizes
from buttress.models.initialise import quieten_branches, scale_to_width, spread_tokens

PAPER = "arXiv:2010.11929"

Patch = Literal[2, 4, 8, 16]


def patch_for(image_size: int) -> Patch:
    """The largest patch that leaves a grid of 8x8 tokens or finer: 4 at 32x32, 16 from 128x128."""
    return 16 if image_size >= 128 else 8 if image_size >= 64 else 4


@dataclass(frozen=True)
class Plan:
    """The shape of a ViT; MLPs and the hidden layer of the head are as wide as the tokens."""

    patch: Patch
    dim: int = 512
    depth: int = 6
    heads: int = 8
    dropout: float = 0.1
    is_narrow: bool = False


def build_vit(
    plan: Plan, num_classes: int, image_size: int, in_channels: int, activation: Activation
) -> VisionTransformer:
    net = VisionTransformer(
        img_size=image_size,
        patch_size=plan.patch,
        in_chans=in_channels,
        num_classes=num_classes,
        embed_dim=plan.dim,
        depth=plan.depth,
        num_heads=plan.heads,
        mlp_ratio=1.0,
        qkv_bias=False,
        pos_drop_rate=plan.dropout,
        proj_drop_rate=plan.dropout,
    )
    net.head = nn.Sequential(
        nn.Linear(plan.dim, plan.dim),
        nn.GELU(),
        nn.Dropout(plan.dropout),
        nn.Linear(plan.dim, num_classes),
    )
    if plan.is_narrow:
        scale_to_width(net)
        quieten_branches(net)
        spread_tokens(net)
    swap_activation(net, "gelu", activation)
    return net


def factory_of(plan: Plan) -> Factory:
    """A factory for a plan; the activation and the dropout stay choices."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = "gelu",
        dropout: float = plan.dropout,
    ) -> VisionTransformer:
        chosen = replace(plan, dropout=dropout)
        return build_vit(chosen, num_classes, image_size, in_channels, activation)

    return build


def _register(name: str, plan: Plan, about: str, published: float | None = None) -> None:
    add = MODELS.register(
        name,
        paper=PAPER,
        tags=("transformer", "vit", "mini" if plan.is_narrow else "published"),
        about=about,
        published=published,
        sizes=Sizes(plan.patch, multiple=plan.patch),
    )
    add(factory_of(plan))


_register("vit_p8", Plan(patch=8), "six blocks of width 512, patches of 8")
_register("vit_p4", Plan(patch=4), "six blocks of width 512, patches of 4", published=9.78)
_register("vit_p2", Plan(patch=2), "six blocks of width 512, patches of 2")

# The three differ in nothing but the patch, so that they can be compared; patches of 2 make four
# times the tokens and about seven times the cost.
_MINI = Plan(patch=4, dim=64, depth=4, heads=4, dropout=0.0, is_narrow=True)
_register("vit_mini", _MINI, "four blocks of width 64, patches of 4")
_register("vit_p8_mini", replace(_MINI, patch=8), "four blocks of width 64, patches of 8")
_register("vit_p2_mini", replace(_MINI, patch=2), "four blocks of width 64, patches of 2")


@MODELS.register(
    "vit_tiny",
    paper=PAPER,
    tags=("transformer", "vit", "tiny"),
    published=None,
    sizes=Sizes(8, multiple=8),
)
def vit_tiny(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "gelu",
) -> VisionTransformer:
    """ViT with patches of 8: two blocks of width 48."""
    net = VisionTransformer(
        img_size=image_size,
        patch_size=8,
        in_chans=in_channels,
        num_classes=num_classes,
        embed_dim=48,
        depth=2,
        num_heads=4,
        mlp_ratio=2.0,
        qkv_bias=False,
    )
    scale_to_width(net)
    spread_tokens(net)
    swap_activation(net, "gelu", activation)
    return net
