"""The smallest eps that fools a model: exact for linear models, and optimality by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import buttress as bt
from buttress.analysis import ANALYSES, AnalysisSubject
from buttress.data import Dataset
from buttress.errors import UserError
from buttress.evaluation.minimum_norm import LEVELS, MinimumNorms
from buttress.threats.norm_ball import Norm, NormBall
from conftest import Linear

NORM_POWERS: dict[Norm, float] = {"Linf": 1, "L2": 2, "L1": torch.inf}  # of the dual norm


@pytest.fixture
def two_classes() -> tuple[Linear, Dataset]:
    model = Linear(48, 2).eval()
    x = 0.4 + 0.2 * torch.rand(30, 3, 4, 4, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        model.bias.copy_(model.bias - model(x).mean(0))
        y = model(x).argmax(1)
    y[:3] = 1 - y[:3]  # misclassified
    return model, Dataset.from_arrays(x, y, classes=["a", "b"])


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_distances_of_a_linear_model_are_its_margins(
    norm: Norm, two_classes: tuple[Linear, Dataset]
) -> None:
    model, data = two_classes
    weight = (model.weight[0] - model.weight[1]).detach()
    with torch.no_grad():
        margins = (model(data.images) @ torch.tensor([1.0, -1.0])).abs()
    expected = (margins / weight.norm(NORM_POWERS[norm])).double().numpy()
    expected[:3] = 0.0
    largest = 1.2 * float(expected.max())
    found = bt.minimum_norms(
        model, data, norm, attacks={"fab-t": {"steps": 10}, "pgd": {"steps": 10}}, max_eps=largest
    )
    assert (found.distances["fab-t"] >= expected * (1 - 1e-4)).all()
    assert found.distances["fab-t"] == pytest.approx(expected, rel=0.06)  # FAB goes 5% beyond
    assert (found.distances["pgd"] >= expected * (1 - 1e-4)).all()
    assert (found.distances["pgd"] <= 1.04 * expected + 1.01 * largest / LEVELS).all()
    assert found.optimality("pgd") > 0.97
    assert 0 < found.passes["fab-t"] < found.passes["pgd"]
    assert found.curve([0.0])[0].accuracy == pytest.approx(0.9)
    assert found.curve([largest])[0].accuracy == 0.0


def test_an_attack_that_finds_nothing_is_infinitely_far(
    two_classes: tuple[Linear, Dataset],
) -> None:
    model, data = two_classes
    found = bt.minimum_norms(model, data, "Linf", attacks=["pgd"], max_eps=1e-6)
    assert np.isinf(found.distances["pgd"][3:]).all()
    assert (found.distances["pgd"][:3] == 0).all()
    assert found.median() == np.inf


def test_optimality_is_the_ratio_of_areas() -> None:
    near, far = np.array([0.0, 1.0, 2.0, 4.0]), np.array([0.0, 2.0, 3.0, np.inf])
    found = MinimumNorms("L2", 8.0, {"near": near}, {"near": 10.0}).with_attack("far", far, 5)
    assert found.best.tolist() == near.tolist()
    assert found.optimality("near") == 1.0
    assert found.optimality("far") == pytest.approx((2 + 1 + 0) / (3 + 2 + 0))
    low, high = found.optimality_interval("far")
    assert low <= 0.6 <= high
    assert [p.accuracy for p in found.curve([0, 1, 2], "far")] == [0.75, 0.75, 0.5]
    with pytest.raises(UserError, match="4 numbers from 0 on"):
        found.with_attack("short", [1.0], 3)


def test_the_analysis_has_a_curve_and_a_rank(two_classes: tuple[Linear, Dataset]) -> None:
    model, data = two_classes
    subject = AnalysisSubject(model, data, NormBall("Linf", 0.02))
    args = {"subject": subject, "attacks": ("fgsm", "noise"), "limit": 30}
    result = ANALYSES.create("minimum_norm", args)
    assert result.accuracy[0] == pytest.approx(0.9)
    assert list(result.accuracy) == sorted(result.accuracy, reverse=True)
    fgsm, noise = result.attacks
    assert fgsm.optimality > noise.optimality
    assert "optimality of the attacks against the best of them: fgsm" in result.summary()
    assert result.table()[1][0][0] == "fgsm"
