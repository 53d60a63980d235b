"""The parts of a network are found in every family."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
import torch
from torch import nn

from buttress.models import (
    Component,
    create_model,
    list_models,
    network_blocks,
    parameter_components,
)
from buttress.models.core import MODELS, ImageSizes
from conftest import thinned

# Tensors of two or more dimensions in each component.
WEIGHTS: dict[str, dict[str, int]] = {
    "vit_p4": {
        "attention_qkv": 6,
        "attention_output": 6,
        "feed_forward": 12,
        "stem": 1,
        "head": 2,
        "other": 2,  # class token, positions
    },
    "pvt_v2": {
        "attention_qkv": 16,  # q and kv
        "attention_output": 8,
        "feed_forward": 16,
        "convolution": 8 + 8 + 3,  # reductions, depth-wise, between stages
        "stem": 1,
        "head": 1,
    },
    "resnet_50": {"convolution": 16 * 3 + 4, "stem": 1, "head": 1},
    "wrn_34_10": {"convolution": 15 * 2 + 3, "stem": 1, "head": 1},
    "preact_resnet_50": {"convolution": 16 * 3 + 4, "stem": 1, "head": 1},
    "resnext_29": {"convolution": 9 * 3 + 3, "stem": 1, "head": 1},
    "vgg_16": {"convolution": 12, "stem": 1, "head": 1},
    "densenet_121": {"convolution": 58 * 2 + 3, "stem": 1, "head": 1},
    # 9 normal cells of 5 separable and one dilated convolution, 2 inputs, of which two reduce;
    # 2 reductions of 2 inputs; nothing that skips inside a reduction changes the resolution.
    "darts": {"convolution": 9 * (5 * 4 + 2 + 2) + 2 + 2 * 2, "stem": 1, "head": 1},
    "timm:swin_tiny_patch4_window7_224": {
        "attention_qkv": 12,
        "attention_output": 12,
        "feed_forward": 24,
        "stem": 1,
        "head": 1,
        "other": 12 + 3,  # tables of relative positions, merging of patches
    },
}


def on_paper(name: str) -> nn.Module:
    with torch.device("meta"):
        return create_model(name, image_size=224 if "224" in name else 32)


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_by_component(name: str) -> None:
    model = on_paper(name)
    found = parameter_components(model)
    matrices = [n for n, p in model.named_parameters() if p.ndim >= 2]
    assert Counter(found[n] for n in matrices) == WEIGHTS[name]


@pytest.mark.parametrize("name", thinned(list_models(), 3))
def test_every_parameter_has_a_component_and_every_model_has_blocks(name: str) -> None:
    model = on_paper(name)
    found = parameter_components(model)
    assert list(found) == [n for n, _ in model.named_parameters()]
    assert set(found.values()) <= set(get_args(Component))
    assert {"stem", "head", "norm"} <= set(found.values())
    has_attention = MODELS.entry(name).metadata["attention"] != "none"
    assert ("attention_qkv" in found.values()) == has_attention
    blocks = network_blocks(model)
    assert all(model.get_submodule(part.name) is part.module for part in blocks)
    assert [part.stage for part in blocks] == sorted(part.stage for part in blocks)


@pytest.mark.parametrize(
    ("name", "per_stage"),
    [
        ("resnet_50", [3, 4, 6, 3]),
        ("wrn_34_10", [5, 5, 5]),
        ("preact_resnet_50", [3, 4, 6, 3]),
        ("resnext_29", [3, 3, 3]),
        ("vgg_16", [2, 2, 3, 3, 3]),
        ("densenet_121", [6, 12, 24, 16]),
        ("darts", [3, 4, 4]),
        ("vit_p4", [6]),
        ("pvt_v2", [2, 2, 2, 2]),
        ("timm:swin_tiny_patch4_window7_224", [2, 2, 6, 2]),
        ("timm:densenet121", [6, 12, 24, 16]),
    ],
)
def test_blocks_by_stage(name: str, per_stage: list[int]) -> None:
    counts = Counter(part.stage for part in network_blocks(on_paper(name)))
    assert [counts[stage] for stage in range(len(counts))] == per_stage


def test_networks_of_the_users_own() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    found = parameter_components(layer)
    assert found["self_attn.in_proj_weight"] == "attention_qkv"
    assert found["self_attn.out_proj.weight"] == "attention_output"
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
    assert parameter_components(plain) == {
        "0.weight": "convolution",
        "0.bias": "convolution",
        "3.weight": "other",
        "3.bias": "other",
    }
    assert [part.name for part in network_blocks(plain)] == ["0", "3"]


def test_a_family_may_state_its_own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))

    @MODELS.register(
        "odd_one",
        sizes=ImageSizes(32),
        components={r"mix\..*": "feed_forward"},
        blocks=r"(?P<stage>mix|last)",
    )
    def odd_one(num_classes: int = 10) -> nn.Module:
        net = nn.Sequential()
        net.add_module("flat", nn.Flatten())
        net.add_module("mix", nn.Linear(3072, 4))
        net.add_module("last", nn.Linear(4, num_classes))
        return net

    model = create_model("odd_one")
    assert parameter_components(model)["net.mix.weight"] == "feed_forward"
    assert parameter_components(model)["net.last.weight"] == "other"
    assert [(part.name, part.stage) for part in network_blocks(model)] == [
        ("net.mix", 0),
        ("net.last", 1),
    ]
