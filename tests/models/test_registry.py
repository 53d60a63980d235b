"""Every small model keeps the contract; the large ones have their published size."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import buttress.models
from buttress.models import (
    MODELS,
    Classifier,
    cost_of,
    count_macs,
    count_parameters,
    create_model,
    list_models,
)

TINY = list_models("tiny")
KINDS = {"cnn", "transformer", "hybrid"}
MACHINERY = {
    "__init__",
    "_torchvision",
    "activations",
    "checkpoint",
    "core",
    "cost",
    "initialise",
    "load",
    "parts",
    "sources",
}

PARAMETERS = {
    "resnet_18": 11_173_962,
    "resnet_50": 23_520_842,
    "wrn_28_10": 36_479_194,
    "wrn_34_10": 46_160_474,
    "wrn_34_12": 66_457_818,
    "wrn_34_r": 68_116_698,
    "wrn_d9-7-1_w10-10-10": 22_193_754,
    "wrn_d5-5-5_w10-10-4": 17_050_970,
    "wrn_d5-5-5_w10-10-4_g1.5": 38_331_930,
    "vit_p4": 9_786_378,
    "pvt_v2": 12_406_474,
}
MEGA_MACS = {"resnet_50": 1298, "wrn_34_10": 6659, "wrn_34_r": 19133, "vit_p4": 641, "pvt_v2": 153}


def images(count: int = 2, channels: int = 3, size: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, channels, size, size, generator=generator)


@pytest.mark.parametrize("name", TINY)
def test_forward_and_backward(name: str) -> None:
    model = create_model(name, seed=0)
    x = images(4).requires_grad_()

    logits = model(x)
    torch.nn.functional.cross_entropy(logits, torch.arange(4)).backward()

    assert logits.shape == (4, 10)
    assert logits.isfinite().all()
    assert x.grad is not None
    assert x.grad.abs().amax((1, 2, 3)).min() > 0
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(("classes", "channels"), [(2, 1), (10, 3), (100, 3)])
def test_any_classes_and_channels(name: str, classes: int, channels: int) -> None:
    model = create_model(name, num_classes=classes, in_channels=channels, seed=0).eval()
    assert model(images(2, channels)).shape == (2, classes)
    assert (model.num_classes, model.in_channels, model.image_size) == (classes, channels, 32)


@pytest.mark.parametrize("name", TINY)
def test_eval_is_deterministic_and_independent_of_the_batch(name: str) -> None:
    model, x = create_model(name, seed=0).eval(), images(4)
    with torch.no_grad():
        logits = model(x)
        assert torch.equal(model(x), logits)
        torch.testing.assert_close(model(x[:1]), logits[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TINY)
def test_state_survives_safetensors(name: str, tmp_path: Path) -> None:
    model, other = create_model(name, seed=0).eval(), create_model(name, seed=1).eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    with torch.no_grad():
        assert torch.equal(model(images()), other(images()))


@pytest.mark.parametrize("name", TINY)
def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone(name: str) -> None:
    before = torch.random.get_rng_state()
    first, same, other = (create_model(name, seed=seed).state_dict() for seed in (7, 7, 8))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", TINY)
def test_tiny_is_tiny(name: str) -> None:
    cost = cost_of(name)
    assert 10_000 <= cost.parameters <= 80_000
    assert 0.2e6 <= cost.macs <= 1.6e6


@pytest.mark.parametrize("name", TINY)
def test_takes_larger_images(name: str) -> None:
    model = create_model(name, image_size=64, seed=0).eval()
    assert model(images(2, size=64)).shape == (2, 10)


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_parameter_count(name: str, parameters: int) -> None:
    assert cost_of(name).parameters == parameters


@pytest.mark.parametrize("name", [e.name for e in MODELS if e.extra["published"] is not None])
def test_parameter_count_as_printed(name: str) -> None:
    """Papers print millions with two decimals, some rounded, some cut off."""
    printed = MODELS.entry(name).extra["published"]
    hundredths = cost_of(name).parameters / 1e4
    assert round(printed * 100) in (math.floor(hundredths), round(hundredths))


@pytest.mark.parametrize(("name", "millions"), MEGA_MACS.items())
def test_multiply_accumulates_include_attention(name: str, millions: int) -> None:
    assert round(cost_of(name).macs / 1e6) == millions


@pytest.mark.parametrize("name", TINY)
def test_a_model_with_weights_costs_what_its_plan_costs(name: str) -> None:
    assert count_macs(create_model(name, seed=0)) == cost_of(name).macs


@pytest.mark.parametrize("name", ["resnet_18", "wrn_d1-1-1_w1-1-1"])
def test_large_images_enter_through_the_stem_for_them(name: str) -> None:
    small, large = cost_of(name, image_size=64), cost_of(name, image_size=128)
    assert large.macs < small.macs


def test_counting_leaves_the_model_as_it_was() -> None:
    model = create_model("resnet_tiny", seed=0)
    model.net.layer1.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    count_macs(model)
    assert model.training
    assert not model.net.layer1.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_only_what_is_trained_counts() -> None:
    model = create_model("vit_tiny", seed=0)
    everything = count_parameters(model)
    model.net.head.requires_grad_(False)
    assert count_parameters(model) == everything - 48 * 10 - 10


def test_every_entry_says_what_it_is() -> None:
    for entry in MODELS:
        assert len(KINDS & set(entry.tags)) == 1, entry.name
        assert len({"tiny", "mini", "published"} & set(entry.tags)) == 1, entry.name
        assert entry.paper, entry.name
        assert entry.about, entry.name
        assert 32 in entry.extra["sizes"], entry.name
        assert "published" in entry.extra, entry.name


def test_every_family_is_imported_and_has_a_tiny_member() -> None:
    folder = Path(buttress.models.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - MACHINERY
    text = (folder / "__init__.py").read_text(encoding="utf-8")
    for family in files:
        assert f"from buttress.models import {family} as {family}\n" in text
        importlib.import_module(f"buttress.models.{family}")
        assert any(family in MODELS.entry(name).tags for name in TINY), family
    assert {tag for e in MODELS for tag in e.tags} >= files


def test_wide_shortcut_takes_the_activated_tensor_only_where_the_width_changes() -> None:
    from buttress.models.wideresnet import Block, Plan

    plan, x = Plan((1,), (8,)), images(2, 8, 8) - 0.5
    for outside, is_activated in ((16, True), (8, False)):
        block = Block(8, outside, 2, plan).eval()
        seen: list[torch.Tensor] = []
        block.shortcut.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        block(x)
        assert (seen[0].min() >= 0) == is_activated


def test_list_models_by_tag() -> None:
    assert set(list_models("wideresnet")) < set(list_models("cnn")) < set(list_models())
    assert list_models("no such tag") == []


def test_a_model_carries_its_name() -> None:
    model = create_model("wrn_tiny")
    assert isinstance(model, Classifier)
    assert model.name == "wrn_tiny"
