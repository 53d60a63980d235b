"""Two classes, three, a thousand: every suite runs and every attack keeps its promises."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import buttress as bt
from buttress.attacks import ATTACKS
from buttress.attacks.losses import margin
from buttress.evaluation import list_suites, load_suite
from buttress.results.suite_spec import SuiteEntrySpec, SuiteSpec
from buttress.threats.norm_ball import Norm, NormBall
from conftest import Linear, images, norms_of, small_net

EPS: dict[Norm, float] = {"Linf": 0.05, "L2": 0.5, "L1": 4.0}
SHORT = {"steps": 3, "queries": 20, "restarts": 1, "targets": 9}
CASES = [(name, norm) for name in ATTACKS.names() for norm in norms_of(name)]


def short(line: SuiteEntrySpec) -> SuiteEntrySpec:
    """The same entry with few steps; `targets` stays at nine, more than there may be classes."""
    is_attack = line.attack in ATTACKS
    known = inspect.signature(ATTACKS.get(line.attack)).parameters if is_attack else {}
    args = {k: v for k, v in SHORT.items() if k in known and k != "targets"}
    if line.args.get("version") == "custom":
        args = {}
    return line.model_copy(update={"args": {**line.args, **args}})


def shortened(name: str) -> SuiteSpec:
    spec = load_suite(name)
    return spec.model_copy(update={"entries": tuple(short(e) for e in spec.entries)})


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("suite", list_suites())
def test_every_suite_runs_on_few_classes(suite: str, classes: int) -> None:
    model = small_net(classes)
    x, _ = images(4)
    names = [str(k) for k in range(classes)]
    # Some suites have budgets by data set.
    data = bt.Dataset.from_arrays(x, model(x).argmax(1), classes=names, name="digits")
    found = bt.evaluate(model, data, shortened(suite))
    assert found.accuracy["clean"] == 1
    assert 0 <= found.worst_case <= 1


@pytest.mark.parametrize(("name", "norm"), CASES)
@pytest.mark.parametrize("classes", [2, 3, 1000])
def test_every_attack_gains_with_any_number_of_classes(name: str, norm: Norm, classes: int) -> None:
    model = Linear(3 * 64, classes)
    known = inspect.signature(ATTACKS.get(name)).parameters
    args: dict[str, Any] = {k: v for k, v in SHORT.items() if k in known}
    if "sources" in known:
        args["sources"] = [Linear(3 * 64, classes)]
    x, _ = images(2 if classes == 1000 else 5)
    y = model(x).argmax(1)
    threat = NormBall(norm, 4 * EPS[norm])
    x_adv = bt.attack(name, model, x, y, threat=threat, **args)
    assert float(threat.perturbation_size(x, x_adv).max()) <= threat.eps * (1 + 1e-5)
    with torch.no_grad():
        before, after = margin(model(x), y), margin(model(x_adv), y)
    assert (after >= before).all()
    assert (after > before).any()
    if norm == "Linf" and not name.startswith(
        ("square", "noise", "cw", "random_search")
    ):  # a step is enough in so wide a ball
        assert (after > 0).all()
