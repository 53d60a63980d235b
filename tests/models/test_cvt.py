"""CvT: maps, and attention between maps of two resolutions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from buttress.models import create_model, model_cost
from buttress.models.families.cvt import ChannelNorm, CvTAttention


def test_parameter_count() -> None:
    assert model_cost("cvt").parameters == 19_547_466


@pytest.mark.parametrize(("size", "sides"), [(32, [16, 8, 4]), (224, [56, 28, 14])])
def test_maps_of_the_published_network(size: int, sides: list[int]) -> None:
    with torch.device("meta"):
        net: Any = create_model("cvt", image_size=size).net.eval()
        x, found = net.stem(torch.empty(1, 3, size, size)), []
        for stage in net.stages:
            x = stage(x)
            found.append(x.shape[2])
    assert found == sides


def test_attention_is_that_of_torch_between_projected_maps() -> None:
    heads, width = 2, 4
    attention = CvTAttention(6, heads, width).eval()
    x = torch.randn(2, 6, 5, 5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        q, kv = attention.q(x), attention.kv(x)
        assert kv.shape == (2, 2 * heads * width, 3, 3)
        joined = []
        for head in range(heads):
            own = slice(head * width, (head + 1) * width)
            query, key, value = (m[:, own].flatten(2) for m in (q, *kv.chunk(2, 1)))
            weights = (query.transpose(1, 2) @ key / width**0.5).softmax(-1)
            joined.append((weights @ value.transpose(1, 2)).transpose(1, 2).unflatten(2, (5, 5)))
        torch.testing.assert_close(attention(x), attention.proj(torch.cat(joined, 1)))


def test_the_norm_is_over_channels() -> None:
    x = torch.randn(2, 8, 3, 3) * 5 + 2
    normed = ChannelNorm(8)(x)
    torch.testing.assert_close(normed.mean(1), torch.zeros(2, 3, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normed.var(1, correction=0), torch.ones(2, 3, 3), atol=1e-3, rtol=0)


@pytest.mark.parametrize("size", [16, 17, 33, 65])
def test_takes_odd_sizes(size: int) -> None:
    model = create_model("cvt_tiny", image_size=size, seed=0).eval()
    with torch.no_grad():
        assert model(torch.rand(1, 3, size, size)).shape == (1, 10)
