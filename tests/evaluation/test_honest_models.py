"""Honest models are trustworthy: no check or cross-check flags them."""

from __future__ import annotations

import pytest

import buttress as bt
from buttress.evaluation.check_budget import check_ratio
from buttress.results.attack_record import AttackRecord
from buttress.results.evaluation import Evaluation
from evaluation.honest_models import HONEST, HonestModel, evaluated_eps, published_models

IMAGES = 64
MAX_CHECK_RATIO = 1 / 3  # passes of checks and cross-checks, over those of `fast` alone
FAMILIES = bt.list_models("tiny")
QUICK = ("convnet, BatchNorm", "convnet, normalized as for ImageNet", "convnet, LayerNorm",
         "resnet_tiny")  # fmt: skip


def attacked(found: Evaluation) -> list[AttackRecord]:
    return [r for name, r in found.records.items() if name != "clean"]


def check_is_trusted(honest: HonestModel) -> None:
    model, data = honest.make(), honest.data(IMAGES)
    eps = evaluated_eps(model, data)
    weak = {"name": "weak", "attack": "pgd", "threat": f"Linf:{eps}", "args": {"steps": 10}}
    for suite in ([f"fast:Linf:{eps}"], [weak]):
        found = bt.evaluate(model, data, suite)  # type: ignore[arg-type]
        assert max(r.metadata["cross_check"]["transfer_images"] for r in attacked(found)) >= 1
        findings = [f.text for f in found.findings if f.severity == "untrustworthy"]
        assert found.is_trustworthy, findings
        assert found.worst_case > 0, "something must be left to cross-check"
        if suite != [weak]:
            assert check_ratio(list(found.records.values())) <= MAX_CHECK_RATIO


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in HONEST]
)
def test_an_honest_model_is_trusted(name: str) -> None:
    check_is_trusted(HONEST[name])


@pytest.mark.reference
def test_a_published_model_is_trusted(cifar10: None) -> None:
    if not (published := published_models()):
        pytest.skip("the published checkpoint is not here")
    for honest in published.values():
        check_is_trusted(honest)


def test_there_are_thirty_of_many_families() -> None:
    assert len(HONEST) >= 30
    assert set(FAMILIES) <= set(HONEST)
