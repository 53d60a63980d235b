"""Attacks called with images, labels, threats, arguments and models that cannot be right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from buttress.attacks.core import ATTACKS, create_attack
from buttress.engine import attack
from buttress.errors import UserError
from buttress.threats.core import Threat
from buttress.threats.parametric import ParametricThreat
from conftest import Linear, images, threat_for
from hostile_cases import guarded, refusal, unless_refused

NAMES = ATTACKS.names()
MODEL = Linear(3 * 8 * 8, 5)
X, Y = images(4, classes=5)
NAN = float("nan")


def given(name: str) -> dict[str, Any]:
    return {"sources": [MODEL]} if name == "transfer" else {}


def excess(text: str, x: Tensor, x_adv: Tensor) -> Tensor:
    """How far outside the set images are; of parametric threats images alone do not tell it."""
    threat = Threat.parse(text)
    is_known = not isinstance(threat, ParametricThreat)
    return threat.excess(x, x_adv) if is_known else torch.zeros(len(x))


def call(name: str, x: Any = X, y: Any = Y, threat: Any = None, **more: Any) -> Tensor:
    chosen = threat or threat_for(name)
    return attack(name, more.pop("model", MODEL), x, y, threat=chosen, **given(name), **more)


IMAGES: dict[str, Any] = {
    "NaN": torch.where(X > 0.5, NAN, X),
    "one NaN": torch.cat([X[:1] * NAN, X[1:]]),
    "infinity": X * torch.inf,
    "beyond 1": X * 255,
    "below 0": X - 0.5,
    "just beyond 1": X + 1e-3,
    "int": (X * 255).int(),
    "uint8": (X * 255).byte(),
    "bool": X > 0.5,
    "complex": X * 1j,
    "three axes": X[0],
    "five axes": X[None],
    "no axis": torch.tensor(0.5),
    "no pixels": X[:, :, :0],
    "no channels": X[:, :0],
    "one channel": X[:, :1],
    "another size": X[:, :, :5, :5],
    "numpy uint8": (X * 255).byte().numpy(),
    "a ragged list": [*X.tolist()[:3], [0.5]],
    "None": None,
    "a text": "images",
    "sparse": X.to_sparse(),
    "without numbers": X.to("meta"),
}
LABELS: dict[str, Any] = {
    "float": Y.float(),
    "NaN": Y * NAN,
    "bool": Y > 0,
    "complex": Y * 1j,
    "below zero": Y - 5,
    "beyond the classes": Y + 5,
    "huge": Y + (1 << 60),
    "too few": Y[:2],
    "too many": torch.cat([Y, Y]),
    "one-hot": torch.eye(5)[Y],
    "a column": Y[:, None],
    "no axis": torch.tensor(1),
    "numpy float": Y.numpy() / 1.0,
    "a list of texts": ["1"] * 4,
    "None": None,
    "without numbers": Y.to("meta"),
}
THREATS: dict[str, Any] = {
    "NaN": "{}:nan",
    "infinity": "{}:inf",
    "beyond floats": "{}:1e999",
    "below zero": "{}:-0.1",
    "minus infinity": "{}:-inf",
    "a word": "{}:large",
    "nothing": "{}:",
    "by zero": "{}:1/0",
    "no eps": "{}",
    "another norm": "L7:0.1",
    "no norm": ":0.1",
    "empty": "",
    "a number": 0.1,
    "a list": [0.1],
    "too long": "{}:" + "9" * 5000,
    "two": "{}:0.1:0.2",
}
IDS: dict[str, Any] = {
    "float": torch.rand(4),
    "too few": torch.arange(2),
    "two axes": torch.arange(4)[:, None],
    "a list of floats": [0.0, 1.0, 2.0, 3.0],
    "numpy float": np.arange(4) / 2,
    "bool": torch.ones(4, dtype=torch.bool),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", IMAGES)
def test_images(case: str, name: str, tmp_path: Path) -> None:
    with guarded(tmp_path):
        refusal(lambda: call(name, x=IMAGES[case]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", LABELS)
def test_labels(case: str, name: str, tmp_path: Path) -> None:
    with guarded(tmp_path):
        refusal(lambda: call(name, y=LABELS[case]))


@pytest.mark.parametrize("case", THREATS)
@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_threats(case: str, norm: str, tmp_path: Path) -> None:
    threat = THREATS[case]
    threat = threat.format(norm) if isinstance(threat, str) else threat
    with guarded(tmp_path):
        with pytest.raises(UserError):
            Threat.parse(threat)
        with pytest.raises(UserError):
            attack("pgd", MODEL, X, Y, threat=threat)


@pytest.mark.parametrize("case", IDS)
def test_ids(case: str, tmp_path: Path) -> None:
    with guarded(tmp_path):
        refusal(lambda: call("pgd", ids=IDS[case]), "ids")


class Returns(nn.Module):
    """A model that answers as it is told."""

    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(x)


def fails(error: Exception) -> Callable[[Tensor], Any]:
    def answer(x: Tensor) -> Any:
        raise error

    return answer


MODELS: dict[str, Callable[[Tensor], Any]] = {
    "a tuple": lambda x: (MODEL(x), x),
    "a dict": lambda x: {"logits": MODEL(x)},
    "None": lambda x: None,
    "one class": lambda x: MODEL(x)[:, :1],
    "no class": lambda x: MODEL(x)[:, :0],
    "fewer classes than labels": lambda x: MODEL(x)[:, :2],
    "one number": lambda x: MODEL(x).sum(),
    "a map": lambda x: x,
    "RuntimeError": fails(RuntimeError("shapes cannot be multiplied\n(1x2 and 3x4)")),
    "ValueError": fails(ValueError("no")),
    "TypeError": fails(TypeError("no")),
    "AssertionError": fails(AssertionError()),
}


@pytest.mark.parametrize("case", MODELS)
def test_models(case: str, tmp_path: Path) -> None:
    with guarded(tmp_path):
        refusal(lambda: call("pgd", model=Returns(MODELS[case])), "model")


def numbers_of(name: str) -> list[str]:
    made = create_attack(name, **given(name))
    fields = [f for f in dataclasses.fields(made) if f.init]
    return [f.name for f in fields if isinstance(getattr(made, f.name), (int, float))]


WRONG: dict[str, Any] = {
    "NaN": NAN, "infinity": torch.inf, "a text": "many", "None": None, "a list": [1], "a dict": {},
    "complex": 1j, "a tensor": torch.ones(2),
}  # fmt: skip
ARGS = [(name, word) for name in NAMES for word in numbers_of(name)]


@pytest.mark.parametrize(("name", "word"), ARGS)
def test_arguments_of_wrong_types(name: str, word: str, tmp_path: Path) -> None:
    with guarded(tmp_path):
        for value in WRONG.values():
            refusal(partial(create_attack, name, **{**given(name), word: value}), word)


SMALL = {"steps": 2, "queries": 3, "samples": 2, "restarts": 1, "targets": 2}


@pytest.mark.parametrize(("name", "word"), ARGS)
def test_arguments_out_of_range(name: str, word: str, tmp_path: Path) -> None:
    """They are refused, or the attack keeps its promises all the same."""
    small = {k: v for k, v in SMALL.items() if k in numbers_of(name)}
    is_count = isinstance(getattr(create_attack(name, **given(name)), word), int)
    for value in (0, -1, -(10**18), 10**30) if is_count else (0.0, -1.0, 1e-300, 1e30, 1e308):
        args: dict[str, Any] = {**small, word: value}
        with guarded(tmp_path):
            x_adv = unless_refused(partial(call, name, **args), word)
        if x_adv is not None:
            assert bool(x_adv.isfinite().all())
            assert float(x_adv.min()) >= 0
            assert float(x_adv.max()) <= 1
            assert not excess(threat_for(name), X, x_adv).any()


@pytest.mark.parametrize("name", NAMES)
def test_strange_arguments(name: str) -> None:
    for word in ("step", "eps", "model", "", "self", "__class__", "norms"):
        refusal(partial(create_attack, name, **{**given(name), word: 1}))


LEGAL: dict[str, dict[str, Any]] = {
    "no image": {"x": X[:0], "y": Y[:0]},
    "eps of zero": {"threat": "eps 0"},
    "double": {"x": X.double()},
    "half": {"x": X.half()},
    "int32 labels": {"y": Y.int()},
    "uint8 labels": {"y": Y.byte()},
    "other strides": {"x": X.transpose(2, 3)},
    "expanded": {"x": X[:1].expand(4, -1, -1, -1)},
    "with gradients": {"x": X.clone().requires_grad_()},
    "ids of any sign": {"ids": torch.tensor([-5, 1 << 62, 0, 7])},
    "the same id twice": {"ids": torch.zeros(4, dtype=torch.int32)},
    "any seed": {"seed": -(10**40)},
    "black images": {"x": X * 0},
    "white images": {"x": X * 0 + 1},
    "one image": {"x": X[:1], "y": Y[:1]},
}


@pytest.mark.parametrize("case", LEGAL)
@pytest.mark.parametrize("name", ["pgd", "apgd-ce", "square", "fab", "fgsm", "noise"])
def test_odd_inputs_that_are_good(case: str, name: str, tmp_path: Path) -> None:
    small = {k: v for k, v in SMALL.items() if k in numbers_of(name)}
    more = dict(LEGAL[case])
    if more.pop("threat", None):
        more["threat"] = threat_for(name, 0)
    x = more.get("x", X)
    with guarded(tmp_path):
        x_adv = call(name, **small, **more)
    assert x_adv.shape == x.shape
    assert x_adv.dtype == x.dtype
    text = more.get("threat", threat_for(name))
    assert not excess(text, x.double(), x_adv.double()).gt(1e-3).any()


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("transfer",)])
def test_a_model_that_answers_nan(name: str, tmp_path: Path) -> None:
    """No attack can do anything here; it must come to an end and stay in the ball."""
    small = {k: v for k, v in SMALL.items() if k in numbers_of(name)}
    broken = Returns(lambda x: MODEL(x) * NAN)
    with guarded(tmp_path):
        x_adv = call(name, model=broken, **small)
    assert bool(x_adv.isfinite().all())


CASES = (
    len(NAMES) * (len(IMAGES) + len(LABELS) + 7 + 1) + 3 * len(THREATS) + len(IDS) + len(MODELS)
    + len(ARGS) * (len(WRONG) + 4) + 6 * len(LEGAL)
)  # fmt: skip
