"""A smoothed copy gives back the gradients that a model hides; honest models have its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import buttress as bt
from buttress.data import load_dataset
from buttress.evaluation import cross_check
from buttress.evaluation.check_budget import TRANSFER_PASSES
from buttress.evaluation.doctor.core import ModelUnderTest
from buttress.evaluation.smoothed_copy import COPY_IMAGES, SmoothedCopy, compare_with_copy
from buttress.threats.norm_ball import NormBall
from evaluation.broken_models import (
    BROKEN,
    EPS,
    accuracy,
    base,
    digits,
    k_winners,
    wrap,
)

FEW = digits("test").select(range(24))
THREAT = NormBall("Linf", EPS)
REPRESENTATIVES = ("resnet_tiny", "vit_tiny", "xcit_tiny")


def compare(model: nn.Module) -> Any:
    return compare_with_copy(ModelUnderTest(model, FEW, THREAT))


@pytest.mark.parametrize(
    "name",
    [
        "flipped gradient sign",
        "imitated smooth gradient",
        "decoy head",
        "detached input",
        "gradient not finite",
        "rounded logits",
        "quantized input",
        "thermometer",
        "jpeg-like rounding",
        "probabilities",
        "grad mode, other outputs",
    ],
)
def test_examples_of_the_copy_fool_the_model(name: str) -> None:
    model = BROKEN[name].make()
    found = compare(model)
    assert found.has_other_gradients
    copy = found.copy
    assert copy is not None
    x_adv = bt.attack("pgd", copy, FEW.images, FEW.labels, threat=THREAT, steps=20, loss="margin")
    assert accuracy(model, x_adv, FEW.labels) < 0.1


def test_the_copy_computes_the_model_for_any_number_of_images() -> None:
    copy = SmoothedCopy(base(), FEW.images[:8])
    with torch.no_grad():
        for count in (1, 8, 13):
            x = FEW.images[-count:]
            torch.testing.assert_close(copy(x), base()(x))


class InPlace(nn.Module):
    """Writes into a tensor of its own, and into its input's copy."""

    def forward(self, x: Tensor) -> Tensor:
        half = torch.zeros_like(x)
        half[:, :, ::2] = x[:, :, ::2]
        half.add_(x.clone().mul_(0.5))
        return base()(half)


@pytest.mark.parametrize(
    "model", [base(), InPlace(), wrap(lambda m, x: m.network(x.clamp(0, 1)))], ids=lambda m: ""
)
def test_a_model_with_true_gradients_has_those_of_its_copy(model: nn.Module) -> None:
    found = compare(model)
    assert not found.has_other_gradients
    assert found.copy is not None
    assert found.summary == "gradients of the model"
    assert found.passes > 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in REPRESENTATIVES else pytest.mark.slow)
        for n in bt.list_models("tiny")
    ],
)
def test_every_architecture_has_the_gradients_of_its_copy(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = bt.create_model(name, num_classes=10).eval()
        for parameter in model.parameters():  # initial weights may be zero
            parameter.data.add_(0.02 * torch.randn_like(parameter))
    data = load_dataset("digits", "test", limit=8)
    found = compare_with_copy(ModelUnderTest(model, data, THREAT))
    assert found.copy is not None
    assert found.summary == "gradients of the model"


def test_a_model_that_leaves_torch_has_no_copy() -> None:
    class Elsewhere(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return torch.from_numpy(base()(x).detach().numpy().copy())

    assert compare(Elsewhere()).copy is None
    assert compare(Elsewhere()).summary == "not compared: the copy has no gradients"


def test_a_contradiction_in_the_sample_leads_to_an_attack_on_all_robust_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cross_check, "GRADIENT_CHECKS", ())  # only the transfer may raise doubts
    monkeypatch.setattr(cross_check, "SAMPLE_QUERIES", 1)
    model = BROKEN["true gradient near images only"].make()
    found = bt.evaluate(model, FEW, [f"pgd:Linf:{EPS}"])
    (record,) = (r for n, r in found.records.items() if n != "clean")
    summary = record.metadata["cross_check"]
    assert summary["transfer_images"] == int(record.correct.sum()) > 0.5 * len(FEW)
    assert len(summary["transfer_fooled_ids"]) > 0.9 * record.correct.sum()
    assert set(summary["transfer_fooled_ids"]) <= set(summary["fooled_ids"])
    assert summary["copy_passes"] > 0
    assert summary["queries"] == cross_check.FULL_QUERIES
    assert found.worst_case < 0.1 < record.accuracy
    assert "transfer_beats_gradients" in {f.check for f in record.findings}
    assert not found.is_trustworthy
    again = bt.evaluate(model, FEW, [f"pgd:Linf:{EPS}"])
    assert again.records[record.name].metadata["cross_check"] == summary, "the same for a seed"


@pytest.mark.parametrize("attack", ["pgd", "fast"])
def test_examples_of_the_copy_are_tried_on_a_few_images_of_every_model(attack: str) -> None:
    found = bt.evaluate(base(), FEW, [f"{attack}:Linf:0.02"])
    (record,) = (r for n, r in found.records.items() if n != "clean")
    summary = record.metadata["cross_check"]
    assert record.correct.sum() > COPY_IMAGES
    assert summary["copy_gradients"] == "gradients of the model"
    assert summary["transfer_images"] == COPY_IMAGES
    assert 0 < summary["copy_passes"] * len(FEW) < TRANSFER_PASSES * COPY_IMAGES
    assert found.is_trustworthy, found.findings


def test_a_weak_attack_is_not_taken_for_a_wrong_gradient() -> None:
    one_step = {"attack": "pgd", "args": {"steps": 1, "rel_step": 0.05}}
    weak = {"name": "weak", "threat": f"Linf:{EPS}", **one_step}
    found = bt.evaluate(base(), FEW, [weak])  # type: ignore[list-item]
    (record,) = (r for n, r in found.records.items() if n != "clean")
    finding = next(f for f in record.findings if f.check == "transfer_beats_gradients")
    assert finding.severity == "note"
    assert "the attack is weak" in finding.message
    assert record.metadata["cross_check"]["queries"] < cross_check.FULL_QUERIES
    assert found.is_trustworthy
    assert found.worst_case == record.accuracy, "a few images with more steps change no number"


def test_comparisons_that_select_get_a_gradient() -> None:
    layer = k_winners(0.5)()
    copy = SmoothedCopy(layer, torch.rand(2, 4))
    x = torch.tensor([[0.1, 0.2, 0.8, 0.9]], requires_grad=True)
    torch.testing.assert_close(copy(x), layer(x))
    (gradient,) = torch.autograd.grad(copy(x).sum(), x)
    assert (gradient[0, :2] != 0).any(), "also of values that were not selected"
