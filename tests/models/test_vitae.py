"""ViTAE: attention by random features, and the maps of its reductions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from buttress.models import create_model
from buttress.models.families.vitae import PerformerAttention


def test_random_features_are_attention_with_a_kernel() -> None:
    """The linear-time form equals the quadratic one, weights k(q, k) divided by their sum."""
    generator = torch.Generator().manual_seed(0)
    attention = PerformerAttention(12, 8).double().eval()
    x = torch.randn(2, 5, 12, generator=generator, dtype=torch.float64)
    q, k, v = attention.qkv(x).chunk(3, -1)

    def features(tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.square().sum(-1, keepdim=True)
        return (tokens @ attention.features.T - length / 2).exp()

    weights = features(q) @ features(k).transpose(1, 2)
    expected = v + attention.proj(weights / weights.sum(2, keepdim=True) @ v)
    torch.testing.assert_close(attention(x), expected, rtol=1e-6, atol=1e-6)


def test_random_features_stay_finite_far_out() -> None:
    attention = PerformerAttention(12, 8).eval()
    with torch.no_grad():
        attention.qkv.weight.mul_(100)
        assert attention(torch.randn(2, 5, 12)).isfinite().all()


def test_random_features_are_saved_but_not_trained() -> None:
    model = create_model("vitae_tiny", seed=0)
    named = [name for name in model.state_dict() if name.endswith("attn.features")]
    assert len(named) == 2
    assert not set(named) & {name for name, _ in model.named_parameters()}
    directions = model.state_dict()[named[0]]
    gram = directions @ directions.T / len(directions)
    torch.testing.assert_close(gram, torch.eye(len(directions)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("size", "sides"), [(32, [8, 4, 2]), (64, [16, 8, 4])])
def test_maps_of_the_published_network(size: int, sides: list[int]) -> None:
    with torch.device("meta"):
        net: Any = create_model("vitae", image_size=size).net.eval()
        x, found = torch.empty(1, 3, size, size), []
        for stage in net.stages:
            x = stage(x)
            found.append(x.shape[2])
    assert found == sides


def test_an_activation_replaces_both_kinds() -> None:
    def kinds(options: dict[str, str]) -> set[type]:
        model = create_model("vitae_tiny", options=options, seed=0)
        return {type(m) for m in model.modules() if isinstance(m, (nn.ReLU, nn.GELU, nn.SiLU))}

    assert kinds({}) == {nn.GELU, nn.SiLU}
    assert kinds({"activation": "relu"}) == {nn.ReLU}
