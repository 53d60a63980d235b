"""Defences that only look robust are flagged by an evaluation, honest models are not."""

from __future__ import annotations

import pytest
from torch import nn

import buttress as bt
from buttress.errors import UserError
from buttress.evaluation import cross_check
from buttress.evaluation.doctor import ModelUnderTest
from buttress.evaluation.doctor.finite_differences import shattered_gradient
from buttress.evaluation.smoothed_copy import GradientComparison
from buttress.results.diagnosis import Finding
from buttress.results.evaluation import Evaluation
from buttress.threats.norm_ball import NormBall
from evaluation.broken_models import (
    BROKEN,
    EPS,
    accuracy,
    adversarial_examples,
    base,
    convnet,
    digits,
    train,
    trained_on,
    wrap,
)
from evaluation.masked_models import MASKED
from evaluation.unnormalized import (
    IMAGENET_STATISTICS,
    BrightnessModel,
    brightness_images,
    white_images_first,
)

FEW = digits("test").select(range(24))


def evaluated(name: str, attack: str) -> Evaluation:
    return bt.evaluate(BROKEN[name].make(), FEW, [f"{attack}:Linf:{EPS}"])


def finding_of(found: Evaluation, check: str) -> Finding:
    findings = [f for f in found.findings if f.check == check]
    assert len(findings) == 1, found.findings
    return findings[0]


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("flipped gradient sign", "loss_does_not_increase"),
        ("shuffled gradient", "gradient_mismatch"),
        ("grad mode, other outputs", "gradient_mode_dependent_outputs"),
        ("nearest-neighbour label leak", "no_gradient_path"),
    ],
)
def test_a_broken_defence_is_not_trustworthy(name: str, check: str) -> None:
    found = evaluated(name, "pgd")
    assert not found.is_trustworthy
    finding = finding_of(found, check)
    assert finding.remedy
    assert finding.evidence


FAST_CASES = {  # what `fast` alone called 33% to 100% robust and trustworthy
    "flipped gradient sign": "Linf",
    "pseudo-random gradient": "Linf",
    "imitated smooth gradient": "Linf",
    "decoy head": "L2",
    "clamped logits": "Linf",
    "logits clamped at 4": "Linf",
    "nearest-neighbour label leak": "Linf",
    "smooth label leak": "Linf",
    "label leak beside a network": "Linf",
    "grad mode, other outputs": "L1",
    "grad mode, memorized": "Linf",
    "grad mode, leaked labels": "Linf",
}
NORM_EPS = {"Linf": EPS, "L2": 2.0, "L1": 20.0}  # each fools the network behind the defences


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        pytest.param(name, norm, marks=[] if norm != "Linf" else pytest.mark.slow)
        for name, norm in [*FAST_CASES.items(), *(("flipped gradient sign", n) for n in NORM_EPS)]
    ],
)
def test_the_ensemble_fast_is_not_fooled(name: str, norm: str) -> None:
    found = bt.evaluate(BROKEN[name].make(), FEW, [f"fast:{norm}:{NORM_EPS[norm]}"])
    assert not found.is_trustworthy
    if BROKEN[name].truth == "base" and name != "grad mode, memorized":
        assert found.worst_case < 0.2


@pytest.mark.parametrize("name", [name for name in FAST_CASES if name.startswith("grad mode")])
def test_the_doctor_notices_a_model_that_looks_at_the_grad_mode(name: str) -> None:
    found = bt.diagnose(BROKEN[name].make(), FEW, f"Linf:{EPS}")
    assert found.trust_level == "untrustworthy"
    assert "gradient_mode_dependent_outputs" in {f.check for f in found.findings}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BROKEN, *MASKED])
def test_no_broken_defence_passes_with_a_robust_accuracy_above_the_true_one(name: str) -> None:
    """On images whose labels were not memorized, or flagged."""
    broken = {**BROKEN, **MASKED}[name]
    data = FEW if broken.truth == "base" and broken.eps == EPS else digits("test")
    found = bt.evaluate(broken.make(), data, [f"fast:Linf:{broken.eps}"])
    if found.is_trustworthy:
        x_adv = adversarial_examples(len(data), eps=broken.eps)
        assert found.worst_case <= accuracy(broken.make(), x_adv, data.labels) + 1e-6


def test_gradients_that_are_right_at_a_point_only_are_shattered() -> None:
    """Ripples finer than eps: 92% robust and trustworthy before, at most 72% in truth."""
    broken = MASKED["rippled input, small eps"]
    found = bt.evaluate(broken.make(), digits("test"), [f"fast:Linf:{broken.eps}"])
    finding = finding_of(found, "shattered_gradient")
    assert float(finding.evidence["cosine_similarity"]) < 0.3
    assert "gradient_mismatch" not in {f.check for f in found.findings}
    assert not found.is_trustworthy
    record = list(found.records.values())[-1]
    assert found.worst_case < record.accuracy, "averaged gradients fool some of the images"


def test_outputs_that_jump_within_eps_are_shattered() -> None:
    broken = MASKED["votes"]
    subject = ModelUnderTest(broken.make(), digits("test"), NormBall("Linf", broken.eps))
    finding = shattered_gradient(subject)
    assert finding is not None
    assert int(finding.evidence["jumping_images"]) >= 2
    assert float(finding.evidence["cosine_similarity"]) > 0.9, "small steps do not show it"


@pytest.mark.parametrize("norm", NORM_EPS)
def test_the_gradients_of_the_network_behind_the_defences_are_not_shattered(norm: str) -> None:
    for eps in (NORM_EPS[norm], NORM_EPS[norm] / 10):
        ball = NormBall(norm, eps)  # type: ignore[arg-type]
        assert shattered_gradient(ModelUnderTest(base(), FEW, ball)) is None


def test_a_model_that_changes_its_images_is_refused() -> None:
    """Else attacks and predictions would see other images than those that are reported."""
    model = wrap(lambda m, x: m.network(x.sub_(0.1)))
    with pytest.raises(UserError, match=r"changes the images in place.*x\.clone\(\)"):
        bt.evaluate(model, FEW, ["clean"])


def test_images_that_only_queries_fool_count_in_the_worst_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_copy = GradientComparison(None, "not recorded")
    monkeypatch.setattr(cross_check, "compare_with_copy", lambda subject: no_copy)
    found = evaluated("flipped gradient sign", "pgd")
    (record,) = (r for n, r in found.records.items() if n != "clean")
    fooled = record.metadata["cross_check"]["fooled_ids"]
    assert len(fooled) > 0.5 * len(FEW)
    assert found.worst_case == pytest.approx(record.accuracy - len(fooled) / len(FEW))
    assert record.metadata["cross_check"]["images"] == int(record.correct.sum()), "all of them"
    assert record.metadata["check_passes"] > 0
    assert "queries_beat_gradients" in {f.check for f in record.findings}


def test_the_network_behind_the_defences_passes_and_is_fooled() -> None:
    model = BROKEN["flipped gradient sign"].make().get_submodule("network")
    assert accuracy(model, adversarial_examples(24), FEW.labels) == 0
    found = bt.evaluate(model, FEW, [f"pgd:Linf:{EPS}"])
    assert found.is_trustworthy, found.findings
    assert found.worst_case == 0


def test_evaluated_images_within_a_model_are_found() -> None:
    """In any tensor, normalized or rounded; training images beside them are no copies."""
    data, other = FEW, digits("train").images[:50]
    held = [data.images[:7], (data.images[:7] - 0.3) / 0.2, (data.images[:7] * 255).byte()]
    for images in held:
        model = wrap(lambda m, x: m.network(x), images=images, other=other)
        finding = finding_of(bt.evaluate(model, FEW, ["clean"]), "memorized_images")
        assert finding.evidence["memorized"] == 7
    hidden = wrap(lambda m, x: m.network(x))
    hidden.memory = data.images[:7].flatten(1).T.clone()
    assert finding_of(bt.evaluate(hidden, FEW, ["clean"]), "memorized_images")
    honest = wrap(lambda m, x: m.network(x), other=other)
    found = bt.evaluate(honest, FEW, ["clean"])
    assert "memorized_images" not in {f.check for f in found.findings}


def test_on_32_images_a_model_without_its_normalization_is_found() -> None:
    model = convnet(20, norm=nn.BatchNorm2d)
    train(model, transform=lambda x: (x - 0.5) / 0.25, epochs=3)
    found = bt.evaluate(model, digits("test").select(range(32)), ["clean"])
    assert found.accuracy["clean"] < 0.3
    assert "not_normalized" in {f.check for f in found.findings}
    assert not found.is_trustworthy


@pytest.mark.parametrize("images", [32, 64])
@pytest.mark.parametrize("statistics", [((0.5,), (0.25,)), IMAGENET_STATISTICS])
def test_a_missing_normalization_with_common_statistics_is_found(
    statistics: tuple[tuple[float, ...], tuple[float, ...]], images: int
) -> None:
    """Neither those of the dataset nor 1/2 mend this model."""
    found = bt.evaluate(BrightnessModel(*statistics), brightness_images(images), ["clean"])
    assert found.accuracy["clean"] < 0.2
    finding = finding_of(found, "not_normalized")
    assert finding.evidence["after"] == 1
    assert not found.is_trustworthy


def test_a_missing_normalization_that_the_first_images_do_not_show_is_found() -> None:
    model, data = BrightnessModel((0.5,), (0.5,)), white_images_first()
    assert accuracy(model, data.images[:64], data.labels[:64]) == 1
    found = bt.evaluate(model, data, ["clean"])
    assert "not_normalized" in {f.check for f in found.findings}


@pytest.mark.parametrize(("mean", "std"), [(0.5, 0.25), (0.449, 0.226)])
def test_a_model_without_its_normalization_is_found(mean: float, std: float) -> None:
    data = digits("test")
    found = bt.evaluate(trained_on(mean, std), data, ["clean"])
    finding = finding_of(found, "not_normalized")
    assert not found.is_trustworthy
    assert float(finding.evidence["after"]) > 0.9


@pytest.mark.parametrize("form", ["inverted pixel values", "rows and columns swapped"])
def test_another_form_of_the_images_is_found(form: str) -> None:
    transform = {"inverted": lambda x: 1 - x, "rows": lambda x: x.mT}[form.split()[0]]
    model = wrap(lambda m, x: m.network(transform(x)))
    finding = finding_of(bt.evaluate(model, digits("test"), ["clean"]), "wrong_input_range")
    assert form in finding.message
    assert float(finding.evidence["after"]) > 0.9


@pytest.mark.parametrize("name", ["swapped labels", "labels in reverse"])
def test_labels_in_another_order_are_named(name: str) -> None:
    found = bt.evaluate(BROKEN[name].make(), digits("test"), ["clean"])
    names = {f.check for f in found.findings}
    assert "permuted_labels" in names
    assert not names & {"normalized_twice", "not_normalized", "wrong_input_range"}
    assert not found.is_trustworthy
