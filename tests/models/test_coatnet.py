"""CoAtNet by letters: what each stage is made of, and relative positions."""

from __future__ import annotations

import pytest
import torch

from buttress.errors import UnknownNameError
from buttress.models import MODELS, create_model, model_cost, network_blocks, parameter_components
from buttress.models.families.coatnet import (
    PUBLISHED_MILLIONS,
    TINY,
    CoAtNetAttention,
    CoAtNetConvBlock,
    CoAtNetTransformerBlock,
    relative_position_index,
)

PARAMETERS = {
    "cctt": 16_997_816,
    "cctc": 16_656_808,
    "cttt": 17_364_176,
    "cttc": 17_023_168,
    "cccc": 16_022_848,
    "ccct": 16_363_856,
    "ctcc": 16_389_208,
    "ctct": 16_730_216,
}


@pytest.mark.parametrize(("letters", "parameters"), PARAMETERS.items())
def test_parameter_count(letters: str, parameters: int) -> None:
    assert model_cost(f"coatnet_{letters}").parameters == parameters


@pytest.mark.parametrize("letters", [*PUBLISHED_MILLIONS, "tttt", "tcct"])
def test_letters_decide_what_stages_are_made_of(letters: str) -> None:
    model = create_model(f"coatnet_{letters}_tiny", seed=0)
    kinds = {"c": CoAtNetConvBlock, "t": CoAtNetTransformerBlock}
    assert [type(part.module) for part in network_blocks(model)] == [kinds[x] for x in letters]
    attention = {
        n for n, part in parameter_components(model).items() if part.startswith("attention")
    }
    attending = [i for i, letter in enumerate(letters) if letter == "t"]
    assert {int(name.split(".")[2]) for name in attention} == set(attending)


def test_without_a_t_it_is_a_convolutional_network() -> None:
    for letters in PUBLISHED_MILLIONS:
        for end in ("", "_mini"):
            assert ("cnn" in MODELS.entry(f"coatnet_{letters}{end}").tags) == (letters == "cccc")


@pytest.mark.parametrize("name", ["coatnet_tttt", "CoAtNet-CCTT-mini"])
def test_any_letters_are_a_name(name: str) -> None:
    assert model_cost(name).parameters > 100_000


@pytest.mark.parametrize("name", ["coatnet_ccttt", "coatnet_ccxt", "coatnet"])
def test_other_names_are_unknown(name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean .*coatnet_"):
        create_model(name)


def test_pairs_at_the_same_offset_share_a_row_of_the_table() -> None:
    side = 3
    index = relative_position_index(side)
    by_offset: dict[tuple[int, int], set[int]] = {}
    for a in range(side**2):
        for b in range(side**2):
            offset = (a // side - b // side, a % side - b % side)
            by_offset.setdefault(offset, set()).add(int(index[a, b]))
    assert all(len(rows) == 1 for rows in by_offset.values())
    assert {min(rows) for rows in by_offset.values()} == set(range((2 * side - 1) ** 2))


def test_the_table_steers_attention() -> None:
    """A large bias for the offset 0 makes each position attend to itself alone."""
    attention = CoAtNetAttention(8, 8, 3, TINY).eval()
    x = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        attention.table[12] = 1e4  # row 2, column 2 of 5x5 offsets: none
        own = attention.proj(attention.qkv(x).chunk(3, 2)[2])
        torch.testing.assert_close(attention(x), own)


@pytest.mark.parametrize("size", [16, 17, 33, 65, 70])
def test_takes_odd_sizes(size: int) -> None:
    model = create_model("coatnet_tiny", image_size=size, seed=0).eval()
    with torch.no_grad():
        assert model(torch.rand(1, 3, size, size)).shape == (1, 10)
