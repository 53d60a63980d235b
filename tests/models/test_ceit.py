"""CeiT: the class token and the convolution of the token grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from buttress.models import create_model, model_cost
from buttress.models.families.ceit import CeiT, CeiTBlock, CeiTConfig
from buttress.models.variants import InputShape

PLAN = CeiTConfig(24, 2, heads=2, stem_channels=8, stem_kernel=3, stem_stride=1, patch=2)


def test_parameter_count() -> None:
    assert model_cost("ceit").parameters == 5_562_634


@pytest.mark.parametrize(("size", "tokens"), [(32, 4), (64, 16), (224, 196)])
def test_tokens_of_the_published_network(size: int, tokens: int) -> None:
    with torch.device("meta"):
        net: Any = create_model("ceit", image_size=size).net.eval()
        assert net.stem(torch.empty(1, 3, size, size)).shape == (1, tokens, 192)


def test_the_class_token_passes_by_the_convolution() -> None:
    block = CeiTBlock(PLAN, 4, has_leff=True).eval()
    attention_alone = CeiTBlock(PLAN, 4, has_leff=False).eval()
    attention_alone.load_state_dict(block.state_dict(), strict=False)
    x = torch.randn(2, 17, 24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        with_leff, without = block(x), attention_alone(x)
    assert torch.equal(with_leff[:, 0], without[:, 0])
    assert not torch.allclose(with_leff[:, 1:], without[:, 1:])


def test_the_last_convolution_changes_no_logit() -> None:
    """Which is why the small variants leave it out."""
    full = CeiT(PLAN, InputShape()).eval()
    slim = CeiT(replace(PLAN, has_last_leff=False), InputShape()).eval()
    missing = slim.load_state_dict(full.state_dict(), strict=False)
    assert not missing.missing_keys
    assert all(key.startswith("blocks.1.") for key in missing.unexpected_keys)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(full(x), slim(x))


def test_tokens_see_their_neighbours_on_the_grid() -> None:
    """LeFF at a corner depends on the tokens beside and below it, not on those farther away."""
    leff = CeiTBlock(PLAN, 4, has_leff=True).eval().leff
    x = torch.randn(1, 16, 24, requires_grad=True)
    leff(x)[0, 0].sum().backward()
    assert x.grad is not None
    seen = x.grad[0].abs().amax(1).view(4, 4) > 0
    assert seen.nonzero().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
