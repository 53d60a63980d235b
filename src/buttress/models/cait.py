"""CaiT (Touvron et al., arXiv:2103.17239) on timm: class attention after the patches have settled.

Blocks of talking-heads attention see patches only; two blocks of class attention at the end read
them into the class token. Patches are of 16 at 224x224 and of 4 at 32x32, as in arXiv:2209.07399,
unless `patch` says otherwise. Layer scales start at 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from timm.models.cait import Cait

from buttress.models.activations import Activation, activation_layer
from buttress.models.core import MODELS, Factory, Sizes
from buttress.models.initialise import quieten_branches, scale_to_width, spread_tokens
from buttress.models.vit import Patch, patch_for

PAPER = "arXiv:2103.17239"

# Class attention is a stage of its own.
BLOCKS = r"(?P<stage>blocks|blocks_token_only)\.\d+"


@dataclass(frozen=True)
class Plan:
    """Width, depth without the class attention, and heads; a patch if the size does not decide."""

    dim: int
    depth: int
    heads: int
    patch: Patch | None = None
    is_narrow: bool = True


def factory_of(plan: Plan) -> Factory:
    """A factory for a plan; the activation and the patch stay choices."""

    def build(
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        activation: Activation = "gelu",
        patch: Patch | None = plan.patch,
    ) -> Cait:
        net = Cait(
            img_size=image_size,
            patch_size=patch or patch_for(image_size),
            in_chans=in_channels,
            num_classes=num_classes,
            embed_dim=plan.dim,
            depth=plan.depth,
            num_heads=plan.heads,
            init_values=1.0,
            act_layer=activation_layer(activation),
        )
        if plan.is_narrow:
            scale_to_width(net)
            quieten_branches(net)
            spread_tokens(net)
        return net

    return build


MODELS.register(
    "cait_s12",
    paper=PAPER,
    tags=("transformer", "cait", "published"),
    about="twelve blocks of width 384, two of class attention",
    published=25.61,
    published_for={"num_classes": 1000, "image_size": 224},
    sizes=Sizes(16, multiple=16),
    blocks=BLOCKS,
)(factory_of(Plan(dim=384, depth=12, heads=8, is_narrow=False)))

MODELS.register(
    "cait_mini",
    paper=PAPER,
    tags=("transformer", "cait", "mini"),
    about="four blocks of width 48, two of class attention",
    published=None,
    sizes=Sizes(16, multiple=16),
    blocks=BLOCKS,
)(factory_of(Plan(dim=48, depth=4, heads=4)))

MODELS.register(
    "cait_tiny",
    paper=PAPER,
    tags=("transformer", "cait", "tiny"),
    about="two blocks of width 32, two of class attention, patches of 8",
    published=None,
    sizes=Sizes(16, multiple=16),
    blocks=BLOCKS,
)(factory_of(Plan(dim=32, depth=2, heads=4, patch=8)))
