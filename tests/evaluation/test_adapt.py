"""Adaptive attacks: proposed from findings, run, and never above what was known before."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import buttress as bt
from buttress.cli.main import run_cli
from buttress.data import Dataset
from buttress.evaluation.adapt import (
    BASELINES,
    MASKING_CHECKS,
    SATURATION_CHECKS,
    Adaptation,
    propose_adaptation,
)
from buttress.evaluation.detectors import ClassOutputs, JointOutputs
from buttress.evaluation.diagnose import DOCTOR_ATTACKS
from buttress.evaluation.doctor import CHECKS, ModelUnderTest
from buttress.results.diagnosis import Diagnosis, Finding
from buttress.threats.norm_ball import NormBall
from conftest import images, small_net

EPS, IMAGES = 0.05, 12
DEFENCE = """
import torch
from torch import nn


class Quantize(nn.Module):
    def forward(self, x):
        return torch.round(7 * x) / 7


def quantized(num_classes):
    torch.manual_seed(0)
    pool = nn.AvgPool2d(4)
    return nn.Sequential(Quantize(), pool, nn.Flatten(), nn.Linear(192, num_classes))


def noisy(num_classes):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes), AlwaysDropout())


class AlwaysDropout(nn.Module):
    def forward(self, z):
        return z + torch.randn_like(z)


def soft(x):
    return x
"""


class Quantize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.round(7 * x) / 7


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.2 * torch.randn_like(x)


class Scale(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return 1e4 * z


class Cut(nn.Module):
    """A layer of features that is cut from the graph: there is no preprocessing to stand in for."""

    def forward(self, z: Tensor) -> Tensor:
        return z.detach()


def diagnose(model: nn.Module, **args: Any) -> Diagnosis:
    x, _ = images(IMAGES)
    with torch.no_grad():
        y = model.eval()(x)[:, :10].argmax(1)
    data = Dataset.from_arrays(x, y, classes=list("abcdefghij"))
    return bt.diagnose(model, data, f"Linf:{EPS}", adapt=True, **args)


def test_masked_gradients_call_for_a_surrogate() -> None:
    found = diagnose(nn.Sequential(Quantize(), small_net())).adaptive
    assert found is not None
    assert found.before == 1.0
    assert found.after <= found.worst_case_before
    assert found.after < 0.6
    assert [a.name for a in found.attacks] == ["adaptive-pgd"]
    assert found.attacks[0].args["surrogate"] == "identity"
    assert "surrogate identity because of zero_gradient" in found.attacks[0].reasons[0]
    text = found.summary(IMAGES)
    assert "robust accuracy 100.0% (75.8% - 100.0%) under pgd-20" in text
    assert f"{found.after:.1%}" in text


@pytest.mark.slow
def test_masked_gradients_without_preprocessing_call_for_queries_or_the_users_surrogate() -> None:
    net = small_net()
    model = nn.Sequential(net[:4], Cut(), net[4:])
    found = diagnose(model).adaptive
    assert found is not None
    assert [a.name for a in found.attacks] == ["adaptive-square"]
    assert "surrogate of your own" in found.notes[0]
    given = diagnose(model, surrogate=lambda x: net(x)).adaptive
    assert given is not None
    assert [a.name for a in given.attacks] == ["adaptive-pgd"]
    assert given.after <= found.after


@pytest.mark.slow
def test_randomness_calls_for_averaged_passes_and_draws() -> None:
    found = diagnose(nn.Sequential(Noise(), small_net())).adaptive
    assert found is not None
    assert found.draws == 20
    assert found.attacks[0].args["eot_samples"] > 1
    assert found.after <= found.worst_case_before <= found.before
    assert "means over 20 draws" in found.summary(IMAGES)


def test_what_findings_call_for() -> None:
    x, y = images(8)
    data = Dataset.from_arrays(x, y, classes=list("abcdefghij"))
    subject = ModelUnderTest(
        nn.Sequential(Noise(), small_net()).eval(), data, NormBall("Linf", EPS)
    )

    def propose(*checks: str) -> Adaptation | None:
        findings = [Finding(check=c, severity="warning", message="", remedy="") for c in checks]
        return propose_adaptation(subject, findings)

    random = propose("random_outputs", "gradient_mismatch")
    assert random is not None
    assert random.args["eot_samples"] > 1
    assert not random.query_reasons  # the mismatch is that of the noise
    masked = propose("gradient_mismatch")
    assert masked is not None
    assert masked.query_reasons
    assert propose("few_images", "training_mode") is None


def test_saturation_calls_for_a_margin_loss() -> None:
    found = diagnose(nn.Sequential(small_net(), Scale())).adaptive
    assert found is not None
    assert found.attacks[0].args["loss"] == "margin"
    assert any("margin loss because of saturated_gradient" in r for r in found.attacks[0].reasons)


class Detector(nn.Module):
    """Ten classes, and a rejection of images that are brighter than the clean ones."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, x: Tensor) -> Tensor:
        z = self.net(x)
        rejection = z.max(1).values + 200 * (x.mean((1, 2, 3)) - images(IMAGES)[0].mean() - 0.01)
        return torch.cat([z, rejection[:, None]], 1)


def test_a_detector_calls_for_a_joint_loss() -> None:
    x, _ = images(IMAGES)
    model = Detector().eval()
    with torch.no_grad():
        y = model.net(x).argmax(1)
    data = Dataset.from_arrays(x, y, classes=list("abcdefghij"))
    found = bt.diagnose(model, data, f"Linf:{EPS}", adapt=True)
    (finding,) = [f for f in found.findings if f.check == "class_count"]
    assert "--adapt" in finding.remedy
    assert found.adaptive is not None
    assert "joint loss" in found.adaptive.attacks[0].reasons[0]
    assert found.adaptive.after < found.adaptive.worst_case_before <= found.adaptive.before
    assert found.accuracy["pgd-20"] == found.adaptive.before
    assert found.passes > IMAGES * 20
    assert "rejects an image" in found.adaptive.notes[0]
    assert bt.diagnose(model, data, f"Linf:{EPS}").adaptive is None


def test_joint_outputs_are_wrong_only_where_an_image_is_misclassified_and_accepted() -> None:
    """All orders of three classes and the rejection, for each label."""
    logits = torch.tensor(list(itertools.permutations([0.0, 1.0, 2.0, 3.0])))
    model = nn.Flatten()  # images of one row are their own logits
    for label in range(3):
        joint = JointOutputs(model, label)(logits.view(-1, 1, 1, 4)).argmax(1)
        predicted = logits.argmax(1)
        assert torch.equal(joint != label, (predicted != label) & (predicted != 3))
    assert torch.equal(ClassOutputs(model)(logits.view(-1, 1, 1, 4)), logits[:, :3])


class Clamp(nn.Module):
    """Logits that are cut off: most gradients are zero, also those of the margin."""

    def forward(self, z: Tensor) -> Tensor:
        centered = z - z.mean(1, keepdim=True)
        return 100 * (centered / centered.std(1, keepdim=True)).clamp(-1.0, 0.8)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(small_net(), Scale()),
        nn.Sequential(small_net(), Clamp()),
        nn.Sequential(small_net(), nn.Softmax(1)),
        nn.Sequential(Quantize(), small_net()),
        nn.Sequential(Noise(), small_net()),
        Detector(),
    ],
    ids=["scaled", "clamped", "probabilities", "quantized", "noisy", "detector"],
)
def test_every_proposal_is_run_with_a_number_before_and_after(model: nn.Module) -> None:
    found = diagnose(model)
    assert found.adaptive is not None, [f.check for f in found.findings]
    assert found.adaptive.attacks
    assert found.adaptive.after <= found.adaptive.worst_case_before <= found.adaptive.before
    assert "robust accuracy" in found.adaptive.summary(IMAGES)


def test_an_honest_model_calls_for_nothing_and_old_diagnoses_are_read() -> None:
    found = diagnose(small_net())
    assert found.adaptive is None
    old = {k: v for k, v in found.model_dump(mode="json").items() if k != "adaptive"}
    assert Diagnosis.parse(old, "old") == found


def test_the_tables_name_checks_and_attacks_that_exist() -> None:
    assert set(MASKING_CHECKS) | set(SATURATION_CHECKS) <= set(CHECKS.names())
    assert set(BASELINES) <= {attack.name for attack in DOCTOR_ATTACKS}


@pytest.fixture
def defence(tmp_path: Path) -> str:
    file = tmp_path / "defence.py"
    file.write_text(DEFENCE)
    return str(file)


def test_the_command_prints_before_and_after(
    defence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["doctor", f"{defence}:quantized", "--data", "digits", "--limit", "12", "--eps", "0.1",
            "--adapt", "--surrogate", f"{defence}:soft"]  # fmt: skip
    assert run_cli(args) == 0
    assert "adaptive attack: adaptive-pgd (surrogate defence.py:soft" in capsys.readouterr().out
    assert run_cli([*args[:-2], "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["adaptive"]["after"] <= content["adaptive"]["before"]
    assert run_cli([*args[:-3], *args[-2:]]) == 2
    assert "add --adapt" in capsys.readouterr().err


def test_evaluate_takes_surrogate_draws_and_passes(
    defence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", "digits", "--limit", "12", "--suite", "clean,fgsm:Linf:0.1"]
    assert run_cli(["evaluate", f"{defence}:quantized", *data, "--surrogate", "0=identity"]) == 0
    assert "backward passes through the surrogate 0=identity" in capsys.readouterr().out
    random = ["evaluate", f"{defence}:noisy", *data, "--draws", "4", "--eot-samples", "2"]
    assert run_cli(random) == 0
    shown = capsys.readouterr().out
    assert "mean over 4 draws" in shown
    assert "every draw" in shown
    for option, message in (
        (["--surrogate", "ident"], "a surrogate must be identity, FILE.py:FUNCTION"),
        (["--surrogate", "none.py:f"], "none.py does not exist"),
        (["--eot-samples", "many"], "--eot-samples must be a count"),
    ):
        assert run_cli(["evaluate", f"{defence}:quantized", *data, *option]) == 2
        assert message in capsys.readouterr().err
