"""Positions that come from the image."""

from __future__ import annotations

from typing import Any

import torch

from buttress.models import create_model
from buttress.models.families.cpvt import PositionalEncodingGenerator


def test_the_class_token_passes_by() -> None:
    peg = PositionalEncodingGenerator(8, (4, 4))
    tokens = torch.randn(2, 17, 8)
    assert torch.equal(peg(tokens)[:, 0], tokens[:, 0])


def test_patches_receive_their_neighbourhood() -> None:
    peg = PositionalEncodingGenerator(4, (4, 6))
    tokens = torch.randn(1, 25, 4)
    out = peg(tokens)
    maps = tokens[:, 1:].reshape(1, 4, 6, 4).permute(0, 3, 1, 2)  # (N, C, H, W)
    neighbourhood = maps[0, 2, 1:4, 2:5]  # around row 2, column 3
    assert peg.conv.bias is not None
    expected = maps[0, 2, 2, 3] + (neighbourhood * peg.conv.weight[2, 0]).sum() + peg.conv.bias[2]
    torch.testing.assert_close(out[0, 1 + 2 * 6 + 3, 2], expected)


def test_nothing_else_knows_where_a_patch_is() -> None:
    model = create_model("cpvt_tiny", seed=0).eval()
    x = torch.rand(1, 3, 32, 32)
    moved = x.roll(8, dims=3)  # patches of 8 change places
    with torch.no_grad():
        assert not torch.allclose(model(x), model(moved), atol=1e-4)
        net: Any = model.net
        net.blocks[0].peg.conv.weight.zero_()
        torch.testing.assert_close(model(x), model(moved), rtol=1e-4, atol=1e-5)
