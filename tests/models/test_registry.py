"""What the registry says about each model, and that no two of a family are the same network."""

from __future__ import annotations

import importlib
import inspect
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import buttress.models.families
from buttress.models import (
    MODELS,
    Classifier,
    create_model,
    list_models,
    parameter_components,
)
from buttress.models.cost import SkipInitialization

TINY = list_models("tiny")
KINDS = {"cnn", "transformer", "hybrid"}
SIZES = {"tiny", "mini", "published"}


def images(count: int = 2, channels: int = 3, size: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, channels, size, size, generator=generator)


def test_every_entry_says_what_it_is() -> None:
    for entry in MODELS:
        assert len(KINDS & set(entry.tags)) == 1, entry.name
        assert len(SIZES & set(entry.tags)) == 1, entry.name
        assert entry.paper, entry.name
        assert entry.summary, entry.name
        assert 32 in entry.metadata["sizes"], entry.name
        assert "published" in entry.metadata, entry.name
        assert not {"mini", "tiny"} & set(entry.tags) or entry.metadata["published"] is None


def test_every_family_is_imported_and_has_a_tiny_and_a_mini_member() -> None:
    folder = Path(buttress.models.families.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    text = (folder / "__init__.py").read_text(encoding="utf-8")
    for family in files:
        assert f"from buttress.models.families import {family} as {family}\n" in text
        importlib.import_module(f"buttress.models.families.{family}")
        for size in SIZES:
            named = [name for name in list_models(size) if family in MODELS.entry(name).tags]
            assert named, f"{family} has no {size} member"
    assert {tag for e in MODELS for tag in e.tags} == files | KINDS | SIZES


def test_no_network_has_two_names() -> None:
    seen: dict[str, str] = {}
    for name in list_models():
        with torch.device("meta"), SkipInitialization():
            layers = repr(create_model(name))  # kinds, widths, strides and activations of all
        assert layers not in seen, f"{name} is {seen.get(layers)} again"
        seen[layers] = name


def test_siblings_of_the_same_shape_compute_different_things() -> None:
    """What differs in strides or activations only differs in its logits for the same weights."""
    siblings: list[tuple[str, dict[str, str]]]
    siblings = [(name, {}) for name in ("pvt_v2_mini", "pvt_v2_p2_mini", "pvt_v2_p1_mini")]
    activations = [("resnet_mini", {"activation": act}) for act in ("relu", "gelu", "silu")]
    for group in (siblings, activations):
        # In training mode: before any training, a BatchNorm in eval mode lets the signal fade.
        models = [create_model(name, options=opts, seed=0) for name, opts in group]
        for model in models:
            model.load_state_dict(models[0].state_dict())
        with torch.no_grad():
            logits = [model(images(8)) for model in models]
        for one, other in itertools.combinations(logits, 2):
            assert (one - other).norm() > 0.05 * other.norm()


@pytest.mark.parametrize("end", ["", "_mini"])
def test_a_coatnet_of_convolutions_has_no_attention(end: str) -> None:
    def attention(name: str) -> set[str]:
        with torch.device("meta"):
            found = parameter_components(create_model(name))
        return {name for name, part in found.items() if part.startswith("attention")}

    assert not attention(f"coatnet_cccc{end}")
    assert attention(f"coatnet_cctt{end}") < attention(f"coatnet_cttt{end}")


OPTIONAL = [n for n in TINY if "activation" in inspect.signature(MODELS.get(n)).parameters]


@pytest.mark.parametrize("name", OPTIONAL)
def test_the_activation_changes_the_function_and_no_weight(name: str) -> None:
    models = [
        create_model(name, seed=0, options={"activation": a}).eval()
        for a in ("relu", "gelu", "silu")
    ]
    states = [model.state_dict() for model in models]
    assert states[0].keys() == states[1].keys() == states[2].keys()
    for model in models:
        model.load_state_dict(states[0])
    with torch.no_grad():
        relu, gelu, silu = (model(images()) for model in models)
    for one, other in ((relu, gelu), (gelu, silu), (relu, silu)):
        assert not torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_every_family_of_convolutions_offers_the_activation() -> None:
    offered = {tag for name in OPTIONAL for tag in MODELS.entry(name).tags}
    for entry in MODELS:
        if "cnn" in entry.tags and "coatnet" not in entry.tags:
            assert set(entry.tags) - KINDS - SIZES <= offered, entry.name


def test_wide_shortcut_takes_the_activated_tensor_only_where_the_width_changes() -> None:
    from buttress.models.families.wideresnet import WideResNetBlock, WideResNetConfig

    plan, late = (
        WideResNetConfig((1,), (8,)),
        WideResNetConfig((1,), (8,), stride_in_second_conv=True),
    )
    x = images(2, 8, 8) - 0.5
    for outside, shape, is_activated in ((16, plan, True), (8, plan, False), (16, late, False)):
        block = WideResNetBlock(8, outside, 2, shape).eval()
        seen: list[torch.Tensor] = []
        block.shortcut.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        block(x)
        assert (seen[0].min() >= 0) == is_activated


def test_the_wide_resnet_with_late_strides() -> None:
    with torch.device("meta"):
        net: Any = create_model("wrn_40_10").net
    first = net.stages[1][0]
    assert (first.conv1.stride, first.conv2.stride) == ((1, 1), (2, 2))
    assert all(m.bias is not None for m in net.modules() if isinstance(m, nn.Conv2d))
    assert first.dropout.p == 0.3


def test_darts_reduces_twice_and_aligns_its_inputs() -> None:
    from buttress.models.families.darts import FactorizedReduction

    net: Any = create_model("darts_mini", seed=0).net
    cells = [cell for stage in net.stages for cell in stage]
    halving = [i for i, cell in enumerate(cells) if isinstance(cell.operations[0], nn.MaxPool2d)]
    assert halving == [len(cells) // 3, 2 * len(cells) // 3]
    older = [i for i, cell in enumerate(cells) if isinstance(cell.input0, FactorizedReduction)]
    assert older == [i + 1 for i in halving]
    reduction = FactorizedReduction(4, 6, "relu").eval()
    assert reduction(torch.rand(1, 4, 7, 7)).shape == (1, 6, 4, 4)
    x = torch.rand(1, 4, 8, 8)
    odd = reduction.odd(x[:, :, 1:, 1:]) / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(reduction(x)[:, 3:], odd, rtol=1e-4, atol=1e-5)


def test_list_models_by_tag() -> None:
    assert set(list_models("wideresnet")) < set(list_models("cnn")) < set(list_models())
    assert list_models("no such tag") == []


def test_a_model_carries_its_name() -> None:
    model = create_model("wrn_tiny")
    assert isinstance(model, Classifier)
    assert model.name == "wrn_tiny"
