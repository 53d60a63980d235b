"""DeiT (Touvron et al., arXiv:2012.12877) on timm: a ViT with MLPs four times as wide.

Patches are of 16 at 224x224 and of 4 at 32x32, as in arXiv:2209.07399, unless `patch` says
otherwise. There is no distillation token.
"""

from __future__ import annotations

from dataclasses import replace

from buttress.models.building_blocks import NARROW_TOKENS_INIT
from buttress.models.core import ImageSizes
from buttress.models.families.vit import ViTConfig, build_vit
from buttress.models.variants import ModelFamily, Variant

DEIT_FAMILY = ModelFamily(
    "deit", "arXiv:2012.12877", "transformer", ImageSizes(16, multiple=16), build_vit,
    options=("activation", "patch"), published_shape={"num_classes": 1000, "image_size": 224},
)  # fmt: skip

DEIT_S = ViTConfig(
    dim=384, depth=12, heads=6, mlp_ratio=4.0, qkv_bias=True, has_hidden_head=False, init=()
)
DEIT_MINI = replace(DEIT_S, dim=48, depth=5, heads=3, init=NARROW_TOKENS_INIT)

DEIT_FAMILY.register(
    Variant("deit_s", DEIT_S, "DeiT-S: twelve blocks of width 384.", published=22.05,
            is_rounded=True),
    Variant("deit_mini", DEIT_MINI, "Five blocks of width 48."),
    Variant("deit_tiny", replace(DEIT_MINI, dim=32, depth=2, heads=2, patch=8),
            "Two blocks of width 32, patches of 8; for tests, not DeiT-Ti.",
            options=("activation",)),
)  # fmt: skip
