"""Attention maps against known ones, and on every small architecture."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.analysis import AnalysisNotApplicable, AnalysisSubject
from buttress.analysis.attention import attention
from buttress.analysis.methods.attention_maps import (
    AttentionCapture,
    AttentionMap,
    attention_changes,
    attention_distances,
    attention_maps,
    attention_rollout,
    token_grid,
    token_layout,
)
from buttress.data import load_dataset
from buttress.models import MODELS, create_model, list_models
from buttress.threats.norm_ball import NormBall
from families import WITHOUT_MAPS

SIDE = 32


def as_map(weights: Tensor, *, is_strided: bool = False) -> AttentionMap:
    return AttentionMap("layer", weights, is_over_channels=False, is_strided=is_strided)


@pytest.mark.parametrize("extra", [0, 1])
def test_uniform_attention_looks_as_far_as_the_grid_is_wide(extra: int) -> None:
    tokens = 4 + extra  # 2x2 cells of 16 pixels
    weights = torch.full((3, 2, tokens, tokens), 1 / tokens)
    layout = token_layout(as_map(weights), 3, (SIDE, SIDE))
    assert layout is not None
    assert (layout.num_class_queries, layout.num_class_keys) == (extra, extra)
    expected = (0 + 16 + 16 + 16 * math.sqrt(2)) / 4
    assert attention_distances(weights, layout).mean(0).tolist() == pytest.approx([expected] * 2)


def test_attention_to_oneself_has_no_distance_and_a_neighbour_is_one_cell_away() -> None:
    neighbour = torch.eye(4)[[1, 0, 3, 2]]  # the other cell of the same row
    weights = torch.stack([torch.eye(4), neighbour])[None]
    layout = token_layout(as_map(weights), 1, (SIDE, SIDE))
    assert layout is not None
    assert attention_distances(weights, layout)[0].tolist() == pytest.approx([0, 16])


def test_windows_are_their_share_of_the_image_but_strided_groups_span_it() -> None:
    weights = torch.full((4, 1, 4, 4), 0.25)
    window = token_layout(as_map(weights), 1, (SIDE, SIDE))
    strided = token_layout(as_map(weights, is_strided=True), 1, (SIDE, SIDE))
    assert window is not None
    assert strided is not None
    assert window.groups == 4
    assert float(window.distance.max()) == pytest.approx(8 * math.sqrt(2))
    assert float(strided.distance.max()) == pytest.approx(16 * math.sqrt(2))


@pytest.mark.parametrize(
    ("tokens", "ratio", "grid"),
    [(16, 1, (0, 4, 4)), (17, 1, (1, 4, 4)), (18, 1, (2, 4, 4)), (9, 0.5, (1, 2, 4)), (7, 1, None)],
)
def test_grids(tokens: int, ratio: float, grid: tuple[int, int, int] | None) -> None:
    assert token_grid(tokens, ratio) == grid


def test_rollout_follows_the_layers_in_their_order() -> None:
    first, second = torch.eye(5), torch.eye(5)
    first[1] = F.one_hot(torch.tensor(2), 5)  # token 1 looks at token 2,
    second[0] = F.one_hot(torch.tensor(1), 5)  # then the class token at token 1
    result = attention_rollout([first[None, None], second[None, None]])
    assert result is not None
    assert result.tolist() == [pytest.approx([0.5, 0.5, 0, 0])]
    swapped = attention_rollout([second[None, None], first[None, None]])
    assert swapped is not None
    assert swapped.tolist() == [pytest.approx([1, 0, 0, 0])]


def test_rollout_of_uniform_attention_is_uniform_and_class_attention_reads_it() -> None:
    uniform = torch.full((1, 2, 4, 4), 0.25)
    for ends in ([], [torch.tensor([0.2, 0.8, 0, 0, 0]).expand(1, 2, 1, 5)]):
        result = attention_rollout([uniform] * 3 + ends)
        assert result is not None
        tilt = 1 / 8 * 0.75 if ends else 0.0  # what the residuals of three layers keep
        assert result[0, 0] == pytest.approx(0.25 + tilt)
    assert attention_rollout([uniform, torch.full((1, 2, 1, 1), 1.0)]) is None


def test_moved_attention_is_a_share() -> None:
    one, other = torch.eye(4).expand(1, 1, 4, 4), torch.eye(4).roll(1, 0).expand(1, 1, 4, 4)
    changes = [attention_changes(one, x, 1).item() for x in (one, other, (one + other) / 2)]
    assert changes == [0, 1, 0.5]


CASES: list[dict[str, Any]] = [
    {},
    {"scale": 0.3},
    {"is_causal": True},
    {"attn_mask": torch.linspace(-2, 2, 25).view(5, 5)},
    {"attn_mask": torch.ones(5, 5).tril().bool()},
]


class Fused(nn.Module):
    def forward(self, q: Tensor, args: dict[str, Any]) -> Tensor:
        return F.scaled_dot_product_attention(q, q.flip(-2), value=q * 2, **args)


@pytest.mark.parametrize("args", CASES)
def test_fused_attention_is_computed_as_torch_does(args: dict[str, Any]) -> None:
    q = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    with AttentionCapture() as capture:
        result = Fused()(q, args)
    torch.testing.assert_close(result, Fused()(q, args))
    assert [m.weights.shape for m in capture.maps] == [(2, 3, 5, 5)]


class Torch(nn.Module):
    """torch's own attention over 2x2 patches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.embed = nn.Conv2d(3, 8, 16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.embed(x).flatten(2).transpose(1, 2)).mean(1)


@pytest.mark.parametrize("name", [*list_models("tiny"), "torch"])
def test_maps_sum_to_one_and_give_what_the_network_gives(name: str) -> None:
    torch.manual_seed(0)
    model = (Torch() if name == "torch" else create_model(name, image_size=SIDE, seed=0)).eval()
    x = torch.rand(2, 3, SIDE, SIDE)
    out, maps = attention_maps(model, x)
    with torch.no_grad():
        torch.testing.assert_close(out, model(x), rtol=1e-4, atol=1e-5)
    for result in maps:
        torch.testing.assert_close(result.weights.sum(-1), torch.ones(result.weights.shape[:-1]))
    assert bool([m for m in maps if not m.is_over_channels]) == (
        name == "torch" or MODELS.entry(name).metadata["attention"] != "none"
    )
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def of_digits(name: str) -> AnalysisSubject:
    data = load_dataset("digits", "test", limit=10)
    return AnalysisSubject(create_model(name, seed=0).eval(), data, NormBall("Linf", 0.1))


def test_a_vision_transformer_is_looked_into() -> None:
    result = attention(of_digits("vit_tiny"), steps=2, examples=2)
    assert len(result.layers) == 2
    assert all(0 < a.attention_change < 1 and len(a.distance) == 4 for a in result.layers)
    assert len(result.examples) == 2
    assert result.rollout_change is not None
    assert f"{result.rollout_change:.1%} of the rollout" in result.summary()


def test_windows_have_distances_but_no_rollout() -> None:
    result = attention(of_digits("swin_tiny"), steps=1, limit=4)
    assert result.rollout_change is None
    assert "differ from layer to layer" in result.rollout_unavailable
    assert [a.groups for a in result.layers] == [4, 4, 1, 1]


@pytest.mark.parametrize(
    ("name", "why"),
    [("xcit_tiny", "channels"), ("mlp_mixer_tiny", "no softmax"), ("resnet_tiny", "no softmax")],
)
def test_networks_without_attention_between_places_are_told_so(name: str, why: str) -> None:
    with pytest.raises(AnalysisNotApplicable, match=why):
        attention(of_digits(name), limit=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(list_models("tiny")) - WITHOUT_MAPS))
def test_every_transformer_is_looked_into(name: str) -> None:
    result = attention(of_digits(name), steps=1, limit=3)
    assert any(a.distance for a in result.layers)
    assert result.summary()
