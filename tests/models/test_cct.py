"""CCT: tokens at each size, the norm on the stream, and the weighting of tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from buttress.models import create_model, model_cost, parameter_components
from buttress.models.families.cct import CCTBlock, CCTConfig


def test_parameter_count() -> None:
    assert model_cost("cct").parameters == 3_760_139


@pytest.mark.parametrize(("size", "tokens"), [(32, 256), (33, 289), (64, 1024), (224, 196)])
def test_tokens_of_the_published_network(size: int, tokens: int) -> None:
    with torch.device("meta"):
        net: Any = create_model("cct", image_size=size).net.eval()
        assert net.tokenizer(torch.empty(1, 3, size, size)).flatten(2).shape == (1, 256, tokens)
    assert net.pos_embed.shape == (1, tokens, 256)


def test_the_second_norm_is_on_the_stream() -> None:
    """With branches that add nothing, a block is its second norm."""
    block = CCTBlock(CCTConfig(16, 1, 2), 0.0).eval()
    branches: list[Any] = [block.attn.proj, block.mlp[2]]
    for branch in branches:
        nn.init.zeros_(branch.weight)
        nn.init.zeros_(branch.bias)
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(block(x), nn.functional.layer_norm(x, (16,)))


def test_dropout_is_for_training_alone() -> None:
    model = create_model("cct_mini", options={"dropout": 0.5}, seed=0)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert not torch.equal(model(x), model(x))
        model.eval()
        assert torch.equal(model(x), model(x))


def test_the_weighting_of_tokens_belongs_to_the_head() -> None:
    found = parameter_components(create_model("cct_tiny", seed=0))
    assert {n for n, part in found.items() if part == "head"} == {
        "net.pool.weight",
        "net.pool.bias",
        "net.head.weight",
        "net.head.bias",
    }
