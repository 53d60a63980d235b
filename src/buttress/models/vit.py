"""Vision transformer (Dosovitskiy et al., arXiv:2010.11929) on timm, for 32x32 images."""

from __future__ import annotations

from timm.models.vision_transformer import VisionTransformer
from torch import nn

from buttress.models.activations import Activation, swap_activation
from buttress.models.core import MODELS, Sizes
from buttress.models.initialise import scale_to_width, spread_tokens

PAPER = "arXiv:2010.11929"


@MODELS.register(
    "vit_p4",
    paper=PAPER,
    tags=("transformer", "vit", "published"),
    published=9.78,
    sizes=Sizes(4, multiple=4),
)
def vit_p4(
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    activation: Activation = "gelu",
    dropout: float = 0.1,
) -> VisionTransformer:
    """ViT with patches of 4: six blocks of width 512, MLPs of the same width, a two-layer head.

    Departure from the network behind the published count: attention is scaled by the width of a
    head (64^-0.5), as in the paper, not by the width of the whole (512^-0.5).
    """
    net = VisionTransformer(
        img_size=image_size,
        patch_size=4,
        in_chans=in_channels,
        num_classes=num_classes,
        embed_dim=512,
        depth=6,
        num_heads=8,
        mlp_ratio=1.0,
        qkv_bias=False,
        pos_drop_rate=dropout,
        proj_drop_rate=dropout,
    )
    net.head = nn.Sequential(
        nn.Linear(512, 512), nn.GELU(), nn.Dropout(dropout), nn.Linear(512, num_classes)
    )
    swap_activation(net, "gelu", activation)
    return net


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
