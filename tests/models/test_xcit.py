"""Patches of an XCiT: strides go, parameters stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.models.xcit import Xcit
from torch import nn

from buttress.errors import UserError
from buttress.models import create_model, model_cost
from buttress.models.families.xcit import set_patch_size


def strides(net: Xcit) -> list[int]:
    layers = net.patch_embed.proj.modules()
    return [layer.stride[0] for layer in layers if isinstance(layer, nn.Conv2d)]


@pytest.mark.parametrize(
    ("patch", "expected"),
    [(16, [2, 2, 2, 2]), (8, [1, 2, 2, 2]), (4, [1, 1, 2, 2]), (2, [1, 1, 1, 2])],
)
def test_the_first_strides_become_one(patch: int, expected: list[int]) -> None:
    model = create_model("xcit_tiny", image_size=32, seed=0).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    set_patch_size(model, patch)
    assert strides(model.net) == expected
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    net: Any = model.net
    tokens, grid = net.patch_embed(torch.rand(1, 3, 32, 32))
    assert grid == (32 // patch, 32 // patch)
    assert tokens.shape[1] == net.patch_embed.num_patches == (32 // patch) ** 2
    assert model(torch.rand(1, 3, 32, 32)).shape == (1, 10)


def test_adapting_again_starts_from_the_whole_stem() -> None:
    net = Xcit(img_size=32, patch_size=16, embed_dim=32, depth=1, num_heads=4)
    for patch in (2, 16, 4):
        set_patch_size(net, patch)
    assert strides(net) == [1, 1, 2, 2]


def test_a_stem_for_patches_of_8_has_three_strides() -> None:
    net = Xcit(img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=4)
    set_patch_size(net, 4)
    assert strides(net) == [1, 2, 2]
    with pytest.raises(UserError, match="one of 1, 2, 4, 8, but got 16"):
        set_patch_size(net, 16)


def test_what_cannot_be_adapted() -> None:
    with pytest.raises(UserError, match="one of 1, 2, 4, 8, 16, but got 3"):
        set_patch_size(create_model("xcit_tiny"), 3)
    with pytest.raises(UserError, match="must be an XCiT, but got VisionTransformer"):
        set_patch_size(create_model("vit_tiny"), 4)


@pytest.mark.parametrize(
    ("size", "expected"), [(32, [1, 1, 2, 2]), (64, [1, 2, 2, 2]), (224, [2, 2, 2, 2])]
)
def test_the_image_size_decides_unless_a_patch_is_given(size: int, expected: list[int]) -> None:
    assert strides(create_model("xcit_mini", image_size=size, seed=0).net) == expected
    given = create_model("xcit_mini", image_size=size, options={"patch": 8}, seed=0)
    assert strides(given.net) == [1, 2, 2, 2]


@pytest.mark.parametrize(
    ("name", "large", "small"),
    [
        ("xcit_n12", 3_053_224, 2_925_514),
        ("xcit_s12", 26_253_304, 25_872_154),
        ("xcit_m12", 46_401_160, 45_893_290),
        ("xcit_l12", 103_792_648, 103_031_338),
        ("deit_s", 22_050_664, 21_342_346),
        ("cait_s12", 25_611_688, 24_903_370),
    ],
)
def test_parameters_at_both_sizes(name: str, large: int, small: int) -> None:
    assert model_cost(name, image_size=224, num_classes=1000).parameters == large
    assert model_cost(name).parameters == small
