"""A network that others trained and published gets the accuracies that they published."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from buttress.attacks.core import create_attack
from buttress.data import Dataset, load_dataset
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.evaluation import evaluate
from buttress.models import load_model
from buttress.threats.norm_ball import NormBall

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT.parent / "shared" / "checkpoints" / "resnet2b.pth"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
pytestmark = [
    pytest.mark.reference,
    pytest.mark.skipif(not CHECKPOINT.is_file(), reason="the published checkpoint is not here"),
]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return load_model(CHECKPOINT, model=f"{ROOT}/examples/resnet2b.py:ResNet2B", mean=MEAN, std=STD)


@pytest.fixture(scope="module")
def data(cifar10: None) -> Dataset:
    return load_dataset("cifar10", "test")


# eps: published PGD accuracy, and the share that the verifier proves: no attack can go below
@pytest.mark.parametrize(
    ("eps", "attacked", "proven"), [("2/255", 0.5482, 0.2688), ("1/255", 0.6224, 0.5716)]
)
def test_no_proven_image_is_broken(
    model: nn.Module, data: Dataset, eps: str, attacked: float, proven: float
) -> None:
    # 20 steps on the margin to each of the nine other classes, the step falling from 2 eps to 0.
    args = {"steps": 20, "loss": "margin", "target": "each", "restarts": 9, "rel_step": 2.0}
    entry = {"name": "pgd", "attack": "pgd", "threat": f"Linf:{eps}"}
    suite = [{**entry, "args": {**args, "schedule": "cosine"}}]
    found = evaluate(model, data, suite, batch_size=500)  # type: ignore[arg-type]
    assert len(found) == 10_000
    assert found.accuracy["clean"] == 0.6925  # published: 69.25%
    assert proven <= found.accuracy["pgd"] <= attacked + 0.0005


@pytest.mark.parametrize("text", ["Linf:2/255", "Linf:8/255", "L2:0.25", "L1:5"])
def test_autoattack_agrees_with_the_reference(model: nn.Module, data: Dataset, text: str) -> None:
    pyautoattack = pytest.importorskip("pyautoattack")
    x, y, ids = data.take(torch.arange(500))
    threat = NormBall.parse(text)
    how = AttackOptions(stop_when_fooled=True)
    ours = run_attack(create_attack("autoattack"), model, x, y, threat, ids=ids, options=how)
    other = pyautoattack.AutoAttack(model.eval(), norm=threat.norm, eps=threat.eps, seed=0)
    found = other.run_standard_evaluation(x, y)
    x_adv = found[0] if isinstance(found, tuple) else found
    with torch.no_grad():
        left, theirs = (model(p).argmax(1) == y for p in (ours.x_adv, x_adv))
    assert float(left.double().mean()) <= float(theirs.double().mean()) + 0.002
    assert float((left == theirs).double().mean()) >= 0.99


def test_guided_attack_beats_plain_steps(model: nn.Module, data: Dataset) -> None:
    x, y, _ = data.take(torch.arange(500))
    threat, how = NormBall("Linf", 2 / 255), AttackOptions(stop_when_fooled=True)
    plain, guided = (
        run_attack(create_attack(name, steps=steps), model, x, y, threat, options=how).fooled.sum()
        for name, steps in (("pgd", 20), ("gama", 100))
    )
    assert guided > plain


@pytest.mark.parametrize(("eps", "dense", "strong"), [(5.0, 0.45, 0.10), (12.0, 0.20, 0.01)])
def test_the_dense_l1_step_hides_how_weak_a_network_is(
    model: nn.Module, data: Dataset, eps: float, dense: float, strong: float
) -> None:
    x, y, _ = data.take(torch.arange(300))
    outcomes = [
        run_attack(create_attack(name), model, x, y, NormBall("L1", eps))
        for name in ("pgd_dense_l1", "apgd-ce")
    ]
    left = [1 - float(out.fooled.double().mean()) for out in outcomes]
    assert left[0] >= dense
    assert left[1] <= strong
