"""Variants that differ in nothing but the patch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from buttress.models import create_model, model_cost


@pytest.mark.parametrize(
    ("name", "parameters", "mega_macs"),
    [
        ("vit_p8", 9_835_530, 164),
        ("vit_p4", 9_786_378, 641),
        ("vit_p2", 9_866_250, 2833),
        ("pvt_v2", 12_406_474, 153),
        ("pvt_v2_p2", 12_406_474, 272),
        ("pvt_v2_p1", 12_406_474, 747),
    ],
)
def test_cost(name: str, parameters: int, mega_macs: int) -> None:
    cost = model_cost(name)
    assert cost.parameters == parameters
    assert round(cost.macs / 1e6) == mega_macs


@pytest.mark.parametrize(
    ("name", "patch"), [("vit_p8_mini", 8), ("vit_mini", 4), ("vit_p2_mini", 2)]
)
def test_tokens_of_a_vit(name: str, patch: int) -> None:
    net: Any = create_model(name, seed=0).eval().net
    assert net.patch_embed.num_patches == (32 // patch) ** 2
    assert net.pos_embed.shape[1] == (32 // patch) ** 2 + 1


@pytest.mark.parametrize(
    ("name", "side"), [("pvt_v2_mini", 8), ("pvt_v2_p2_mini", 16), ("pvt_v2_p1_mini", 32)]
)
def test_maps_of_a_pvt(name: str, side: int) -> None:
    net: Any = create_model(name, seed=0).eval().net
    x = net.patch_embed(torch.rand(1, 3, 32, 32))
    assert x.shape[1:3] == (side, side)
    weights = create_model("pvt_v2_mini", seed=0).net.state_dict()
    assert all(torch.equal(weights[key], value) for key, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("name", "size", "patch"),
    [("deit_mini", 32, 4), ("deit_mini", 64, 8), ("cait_mini", 32, 4), ("cait_mini", 160, 16)],
)
def test_the_image_size_decides_unless_a_patch_is_given(name: str, size: int, patch: int) -> None:
    net: Any = create_model(name, image_size=size).net
    assert net.patch_embed.patch_size == (patch, patch)
    given: Any = create_model(name, image_size=size, options={"patch": 8}).net
    assert given.patch_embed.patch_size == (8, 8)
