"""The -R networks come out of the rule, applied to their originals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from buttress.errors import UserError
from buttress.models import create_model, model_cost
from buttress.models.families import resnet as resnet_family
from buttress.models.families.resnet import ResNetConfig
from buttress.models.families.resnext import ResNeXtConfig
from buttress.models.variants import (
    StageConfig,
    scale_widths,
    shrink_last_channels,
    shrink_last_stage,
    stage_config,
)

PAIRS = {
    "vgg_11": "vgg_11_r",
    "densenet_121": "densenet_121_r",
    "darts": "darts_r",
    "vgg_11_mini": "vgg_11_r_mini",
    "densenet_121_mini": "densenet_121_r_mini",
    "darts_mini": "darts_r_mini",
}
LAST = {"vgg_11_r": 205, "densenet_121_r": 205, "darts_r": 116, "wrn_34_r": 512}


@pytest.mark.parametrize(("original", "shrunk"), PAIRS.items())
def test_the_rule_gives_the_r_form(original: str, shrunk: str) -> None:
    assert shrink_last_stage(stage_config(original)) == stage_config(shrunk)
    assert model_cost(shrunk).parameters < model_cost(original).parameters
    assert model_cost(shrunk).macs < model_cost(original).macs


def test_the_rule_and_twice_the_width_give_wrn_34_r() -> None:
    narrow = shrink_last_stage(stage_config("wrn_34_10"))
    assert narrow.channels == (160, 320, 256)
    assert scale_widths(narrow, 2) == stage_config("wrn_34_r")


@pytest.mark.parametrize(("name", "last"), LAST.items())
def test_the_last_width_is_the_published_one(name: str, last: int) -> None:
    assert stage_config(name).channels[-1] == last


@pytest.mark.parametrize("original", ["vgg_11_mini", "densenet_121_mini", "darts_mini"])
def test_only_the_last_stage_changes(original: str) -> None:
    before = create_model(original, seed=0).state_dict()
    after = create_model(PAIRS[original], seed=0).state_dict()
    assert before.keys() == after.keys()
    changed = [n for n in before if before[n].shape != after[n].shape]
    first = next(iter(before))
    assert changed
    assert first not in changed
    assert not any(".0." in n.split("stages", 1)[-1][:3] for n in changed if "stages" in n)


def test_the_rule_fits_any_staged_family() -> None:
    shrunk = shrink_last_stage(stage_config("resnet_50"))
    assert isinstance(shrunk, ResNetConfig)
    assert shrunk.channels == (64, 128, 256, 205)
    with torch.device("meta"):
        net: Any = resnet_family.RESNET_FAMILY.factory(shrunk)()
        assert net.fc.in_features == 4 * 205
    assert shrink_last_stage(ResNeXtConfig((1,), (32,), groups=4)).channels == (16,)


def test_bare_numbers() -> None:
    assert shrink_last_channels([10, 10, 10]) == (10, 10, 4)
    assert shrink_last_channels([64, 640]) == (64, 256)
    assert shrink_last_channels([288], multiple=2) == (116,)
    assert shrink_last_channels([100], ratio=1.0) == (100,)


@pytest.mark.parametrize("ratio", [0.0, -0.4, 1.5])
def test_a_ratio_outside_0_and_1(ratio: float) -> None:
    with pytest.raises(UserError, match="0 < ratio <= 1"):
        shrink_last_channels([10], ratio)


def test_a_model_without_a_plan_names_those_with_one() -> None:
    with pytest.raises(UserError, match=r"no stage configuration.*vgg_11"):
        stage_config("vit_tiny")


def test_impossible_plans() -> None:
    with pytest.raises(UserError, match="one number per stage"):
        StageConfig((1, 2), (8,))
    with pytest.raises(UserError, match="positive multiples of 4"):
        ResNeXtConfig((1,), (30,), groups=4)
