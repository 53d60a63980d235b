"""What models cost, which images they take, and that their counts are the published ones."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from buttress.errors import UserError
from buttress.models import (
    MODELS,
    count_macs,
    count_parameters,
    create_model,
    list_models,
    model_cost,
)
from buttress.models.catalog import describe_models, published_size

TINY, MINI, PUBLISHED = (list_models(size) for size in ("tiny", "mini", "published"))
SMALL_ONES = [*TINY, *MINI]
PRINTED = [entry.name for entry in MODELS if entry.metadata["published"] is not None]

MAX_TOLERANCE = 0.055  # timm's own versions come near the published ones; all others are exact
MAX_MINI_PARAMETERS, MAX_MINI_MACS = 500_000, 12.5e6

PARAMETERS = {
    "resnet_18": 11_173_962,
    "resnet_50": 23_520_842,
    "preact_resnet_50": 23_509_066,
    "resnext_29": 9_128_778,
    "vgg_16": 14_728_266,
    "densenet": 1_121_860,
    "wrn_28_10": 36_479_194,
    "wrn_34_10": 46_160_474,
    "wrn_34_12": 66_457_818,
    "wrn_34_r": 68_116_698,
    "wrn_40_10": 55_856_330,
    "wrn_d9-7-1_w10-10-10": 22_193_754,
    "wrn_d5-5-5_w10-10-4": 17_050_970,
    "wrn_d5-5-5_w10-10-4_g0.25": 1_074_170,
    "wrn_d5-5-5_w10-10-4_g0.5": 4_273_818,
    "wrn_d5-5-5_w10-10-4_g1.5": 38_331_930,
    "wrn_d5-5-1_w10-10-2": 11_474_522,
    "vgg_11": 9_231_114,
    "vgg_11_r": 5_830_475,
    "densenet_121": 6_956_298,
    "densenet_121_r": 5_999_686,
    "darts": 6_579_118,
    "darts_r": 2_526_970,
    "vit_p4": 9_786_378,
    "vit_p8": 9_835_530,
    "vit_p2": 9_866_250,
    "pvt_v2": 12_406_474,
}
MEGA_MACS = {
    "resnet_50": 1298,
    "preact_resnet_50": 1298,
    "resnext_29": 1409,
    "vgg_16": 313,
    "densenet": 296,
    "wrn_34_10": 6659,
    "wrn_34_r": 19133,
    "wrn_40_10": 8782,
    "vgg_11_r": 139,
    "densenet_121_r": 858,
    "darts": 1058,
    "darts_r": 762,
    "vit_p4": 641,
    "pvt_v2": 153,
}


@pytest.mark.parametrize("name", PRINTED)
def test_parameter_count_as_printed(name: str) -> None:
    figure = published_size(name)
    assert figure is not None
    entry = MODELS.entry(name)
    decimals = len(str(figure).partition(".")[2])
    units = figure.parameters / 10 ** (6 - decimals)
    is_exact = round(figure.published_millions * 10**decimals) == (
        round(units) if entry.metadata["is_rounded"] else int(units)
    )
    if tolerance := entry.metadata["tolerance"]:
        assert not is_exact, "needs no tolerance"
        assert abs(figure.relative_difference) <= tolerance <= MAX_TOLERANCE
    else:
        assert is_exact


def test_what_is_said_of_a_printed_count_is_said_of_models_that_have_one() -> None:
    for entry in MODELS:
        if entry.name not in PRINTED:
            assert not entry.metadata["is_rounded"], entry.name
            assert not entry.metadata["tolerance"], entry.name


def test_the_page_of_architectures_names_every_tolerance() -> None:
    page = (Path(__file__).parents[2] / "docs/architectures.md").read_text(encoding="utf-8")
    inexact = [entry for entry in MODELS if entry.metadata["tolerance"]]
    assert inexact
    for entry in inexact:
        assert f"`{entry.name}`" in page
        assert f"within {entry.metadata['tolerance']:.1%}" in page


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_parameter_count(name: str, parameters: int) -> None:
    assert model_cost(name).parameters == parameters


@pytest.mark.parametrize(("name", "millions"), MEGA_MACS.items())
def test_multiply_accumulates_include_attention(name: str, millions: int) -> None:
    assert round(model_cost(name).macs / 1e6) == millions


@pytest.mark.parametrize(
    "name", [*TINY, *(pytest.param(n, marks=pytest.mark.slow) for n in (*MINI, *PUBLISHED))]
)
def test_the_cost_on_paper_is_what_the_counter_of_torch_says(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    assert model_cost(name)[:2] == (count_parameters(model), count_macs(model))


def test_a_model_with_weights_costs_what_it_costs_on_paper() -> None:
    for name in ("resnet_tiny", "vit_tiny"):
        model = create_model(name, seed=0)
        assert model_cost(name)[:2] == (count_parameters(model), count_macs(model))


class FusedAttention(torch.autograd.Function):
    """Attention that keeps no attention weights, as the fused kernels do."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        ctx.save_for_backward(q, k, v, out)
        return out


@pytest.mark.parametrize(
    "name", [*TINY, *(pytest.param(n, marks=pytest.mark.slow) for n in (*MINI, *PUBLISHED))]
)
def test_activations_are_what_autograd_keeps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = model_cost(name).activations
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda q, k, v, **_: FusedAttention.apply(q, k, v)
    )
    with torch.device("meta"):
        model = create_model(name).eval()
        x = torch.empty(1, 3, 32, 32)
    own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        if (key := tensor.untyped_storage()._cdata) not in own:
            kept[key] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(x)
    numbers = sum(t.untyped_storage().nbytes() for t in kept.values()) / 4
    assert 0.75 * numbers < expected < 1.1 * numbers


def test_counting_leaves_the_model_as_it_was() -> None:
    model = create_model("resnet_tiny", seed=0)
    net: Any = model.net
    net.layer1.eval()
    net.fc.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    count_macs(model)
    assert model.training
    assert not net.layer1.training
    assert net.layer2[0].conv1.weight.requires_grad
    assert not net.fc.weight.requires_grad
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_only_what_is_trained_counts() -> None:
    model = create_model("vit_tiny", seed=0)
    everything = count_parameters(model)
    model.net.head.requires_grad_(False)
    assert count_parameters(model) == everything - 48 * 10 - 10


@pytest.mark.parametrize("name", TINY)
def test_tiny_is_tiny(name: str) -> None:
    cost = model_cost(name)
    assert 10_000 <= cost.parameters <= 80_000
    assert 0.2e6 <= cost.macs <= 1.6e6


@pytest.mark.parametrize("name", MINI)
def test_mini_trains_in_minutes_on_two_cores_or_says_why_not(name: str) -> None:
    cost = model_cost(name)
    is_small = cost.parameters <= MAX_MINI_PARAMETERS and cost.macs <= MAX_MINI_MACS
    assert cost.parameters >= 50_000
    assert is_small == (not MODELS.entry(name).metadata["size_note"])


@pytest.mark.parametrize(
    "name", [*TINY, *(pytest.param(n, marks=pytest.mark.slow) for n in [*MINI, *PUBLISHED])]
)
@pytest.mark.parametrize("size", [64, 160, 224])
def test_larger_images_are_taken_or_refused_with_the_sizes_that_fit(name: str, size: int) -> None:
    if size in MODELS.entry(name).metadata["sizes"]:
        assert model_cost(name, image_size=size).macs > 0
    else:
        with pytest.raises(UserError, match=r"supports image_size .* and more"):
            model_cost(name, image_size=size)


@pytest.mark.parametrize("name", [n for n in TINY if 64 in MODELS.entry(n).metadata["sizes"]])
def test_runs_on_64x64_images(name: str) -> None:
    model = create_model(name, image_size=64, seed=0).eval()
    with torch.no_grad():
        assert model(torch.rand(2, 3, 64, 64)).isfinite().all()


@pytest.mark.parametrize(
    "name",
    ["resnet_18", "wrn_d1-1-1_w1-1-1", "preact_resnet_mini", "resnext_29", "densenet", "darts"],
)
def test_large_images_enter_through_the_stem_for_them(name: str) -> None:
    small, large = model_cost(name, image_size=64), model_cost(name, image_size=128)
    assert large.macs < small.macs


def test_the_table_of_models() -> None:
    rows = describe_models("vgg")
    assert [row.name for row in rows] == list_models("vgg")
    row = next(row for row in rows if row.name == "vgg_16")
    assert (row.category, row.size, row.parameters) == ("cnn", "published", 14_728_266)
    assert row.published is not None
    assert (str(row.published), row.published.parameters) == ("14.72", 14_728_266)
    assert math.isclose(row.published.relative_difference, 0.000561, abs_tol=1e-5)
    assert next(row for row in rows if row.name == "vgg_mini").published is None


def test_a_figure_is_compared_at_its_own_classes_and_size() -> None:
    figure = published_size("vitae")
    assert figure is not None
    assert (figure.num_classes, figure.image_size, figure.parameters) == (1000, 32, 23_187_432)
    assert model_cost("vitae").parameters == 22_806_282


@pytest.mark.parametrize("depths", ["1-1-1", "9-9-9", "9-7-1", "5-5-5"])
@pytest.mark.parametrize("factors", ["10-10-10", "2-10-10", "10-10-4"])
def test_wide_resnets_of_a_depth_and_width_study_fit_in_small(depths: str, factors: str) -> None:
    name = f"wrn_d{depths}_w{factors}_mini"
    model = create_model(name)
    net: Any = model.net
    blocks = [len(stage) for stage in net.stages]
    channels = [stage[-1].conv2.out_channels for stage in net.stages]
    x, y, z = map(int, factors.split("-"))
    assert blocks == [int(depth) for depth in depths.split("-")]
    assert channels == [x, 2 * y, 4 * z]
    assert model_cost(name).macs <= 13e6


def test_files_of_families_are_read_in_one_go() -> None:
    folder = Path(create_model.__code__.co_filename).parent
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 310, path.name
        if any(tag == path.stem for entry in MODELS for tag in entry.tags):
            assert re.search(r"arXiv:\d{4}\.\d{4,5}", text.partition("from __future__")[0]), (
                path.name
            )
