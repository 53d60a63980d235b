"""Robust accuracy per threat model, and UAR, from records."""

from __future__ import annotations

import numpy as np
import pytest

from buttress.errors import UserError
from buttress.evaluation.suite import SuiteTarget, load_suite, resolve_suite
from buttress.results.attack_record import AttackRecord
from buttress.results.evaluation import Evaluation
from buttress.results.threat_summary import CALIBRATIONS, beyond_norms

N = 10


def record(name: str, threat: str, correct: list[int], **metadata: object) -> AttackRecord:
    flags = np.asarray(correct, dtype=bool)
    zeros = np.zeros(len(flags), dtype=np.float32)
    ids = np.arange(len(flags))
    details = {"attack": "pgd", "threat": threat, "dataset": "cifar10", "forward_passes": 3.0}
    return AttackRecord(name, ids, ids, ids, flags, zeros, zeros, {**details, **metadata})


def evaluation(*records: AttackRecord) -> Evaluation:
    return Evaluation("made up", {r.name: r for r in records})


def test_all_attacks_in_a_threat_model_count_together() -> None:
    found = evaluation(
        record("clean", "", [1] * N),
        record("a", "L0:4", [1, 1, 1, 1, 1, 1, 0, 0, 0, 0], backward_passes=2.0),
        record("b", "L0:4", [1, 1, 0, 0, 1, 1, 1, 1, 1, 0],
               cross_check={"forward_passes": 0.5, "fooled_ids": [0]}),
        record("c", "patch:5", [0] * 9 + [1]),
    )  # fmt: skip
    sparse = found.threats["L0:4"]
    assert list(found.threats) == ["L0:4", "patch:5"]
    assert sparse.estimate.accuracy == pytest.approx(0.3), "images 1, 4 and 5"
    assert sparse.entries == ("a", "b")
    assert (sparse.forward_passes, sparse.backward_passes) == (6.5, 2.0)
    assert found.to_dict()["threats"]["patch:5"]["accuracy"] == pytest.approx(0.1)
    np.testing.assert_allclose(beyond_norms(found.threats)[[1, 4, 9]], [0.5, 0.5, 0.5])
    with pytest.raises(UserError, match="unseen"):
        beyond_norms(evaluation(record("a", "Linf:0.1", [1])).threats)


def test_uar_is_the_ratio_of_two_sums() -> None:
    calibration = CALIBRATIONS["cifar10"]["flow"]
    threats = calibration.threats("flow")
    counts = [9, 8, 6, 4, 2, 0]
    records = [record(t, t, [1] * c + [0] * (N - c)) for t, c in zip(threats, counts, strict=True)]
    found = evaluation(*records).uar
    assert list(found) == ["flow"]
    expected = 100 * sum(counts) / N / sum(calibration.accuracies)
    assert found["flow"].uar == pytest.approx(expected)
    low, high = found["flow"].interval
    assert low < expected < high
    assert found["flow"].accuracies == pytest.approx([c / N for c in counts])
    assert not evaluation(*records[:5]).uar, "a size is missing"
    elsewhere = [record(t, t, [1], dataset="digits") for t in threats]
    assert not evaluation(*elsewhere).uar


@pytest.mark.parametrize(
    ("suite", "dataset"), [("uar-cifar10", "cifar10"), ("uar-imagenet100", "imagenet-100")]
)
def test_the_suites_have_the_calibrated_sizes(suite: str, dataset: str) -> None:
    target = SuiteTarget({"Linf": 0.1, "L2": 1.0, "L1": 1.0}, 32, dataset)
    attacked = {str(e.threat) for e in resolve_suite(load_suite(suite), target) if e.threat}
    table = CALIBRATIONS[dataset]
    assert attacked == {threat for kind, c in table.items() for threat in c.threats(kind)}
    for calibration in table.values():
        assert len(calibration.sizes) == len(calibration.accuracies) == 6
        assert list(calibration.accuracies) == sorted(calibration.accuracies, reverse=True)
