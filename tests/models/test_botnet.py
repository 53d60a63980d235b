"""Attention in a ResNet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from buttress.models import create_model
from buttress.models.families.botnet import HEADS, BotNetAttention


def test_attention_by_its_formula() -> None:
    attention = BotNetAttention(8, side=3, stride=1)
    x = torch.randn(2, 8, 3, 3)
    out = attention(x)
    per_head = 8 // HEADS
    for head in range(HEADS):
        own = slice(head * per_head, (head + 1) * per_head)
        q, k, v = (
            layer(x)[:, own].flatten(2)  # (N, C, H * W)
            for layer in (attention.query, attention.key, attention.value)
        )
        content = q.mT @ k
        positions = q.mT @ (attention.rows + attention.columns)[head].flatten(1)
        expected = v @ (content + positions).softmax(dim=-1).mT
        torch.testing.assert_close(out[:, own].flatten(2), expected)


@pytest.mark.parametrize(("size", "side"), [(32, 8), (40, 10), (64, 16), (72, 5), (224, 14)])
def test_attention_stands_in_the_last_stage_alone(size: int, side: int) -> None:
    with torch.device("meta"):
        net: Any = create_model("botnet", image_size=size).net
    kinds = {name: type(module) for name, module in net.named_modules() if "conv2" in name}
    found = {name for name, kind in kinds.items() if kind is BotNetAttention}
    assert found == {f"layer4.{i}.conv2" for i in range(3)}
    assert kinds["layer3.5.conv2"] is nn.Conv2d
    assert net.layer4[0].conv2.rows.shape[2] == side
    assert net.layer4[1].conv2.rows.shape[2] == -(-side // 2)


@pytest.mark.parametrize("size", [20, 32, 72, 100])
def test_any_size_runs(size: int) -> None:
    model = create_model("botnet_tiny", image_size=size, seed=0).eval()
    assert model(torch.rand(1, 3, size, size)).shape == (1, 10)
