"""Surrogates: the model's own outputs, the gradients of the stand-in (BPDA)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import buttress as bt
from buttress.attacks import ATTACKS, create_attack
from buttress.engine import AttackOptions, run_attack
from buttress.engine.cost import attack_passes
from buttress.errors import UserError
from buttress.models.gradient_flow import INPUT, PassPoint, find_gradient_stop
from buttress.models.surrogate import Surrogate
from buttress.results.surrogate_text import check_surrogate, split_surrogate
from buttress.threats.norm_ball import NormBall
from conftest import images, small_net


class Quantize(nn.Module):
    """Seven steps of gray; its gradient is zero."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.round(7 * x) / 7


class Inline(nn.Module):
    """A defence in the code of the model, not in a module of its own."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net((torch.round(7 * x) / 7).detach())


NET = small_net()
X, _ = images(16)
FORMS: dict[str, nn.Module] = {
    "submodule": nn.Sequential(Quantize(), NET),
    "after a layer": nn.Sequential(nn.Dropout(), nn.Sequential(Quantize(), NET)),
    "inline": Inline(NET),
}


def predictions(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(x).argmax(1)


def straight_through(_: nn.Module, x: Tensor) -> Tensor:
    return NET(x)


STAND_INS: dict[str, Any] = {
    "identity": "identity",
    "images": lambda x: x,
    "a module": nn.Identity(),
    "logits": straight_through,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stand_in", STAND_INS)
def test_attacks_work_through_a_surrogate_and_not_without(form: str, stand_in: str) -> None:
    model = FORMS[form].eval()
    y = predictions(model, X)

    def accuracy(surrogate: Any) -> float:
        x_adv = bt.attack(
            "pgd", model, X, y, threat="Linf:0.12", steps=10, start="clean", surrogate=surrogate
        )
        return float((predictions(model, x_adv) == y).float().mean())

    assert accuracy(None) == 1.0
    assert accuracy(STAND_INS[stand_in]) < 0.3


@pytest.mark.parametrize("name", [n for n in ATTACKS.names() if n != "transfer"])
def test_every_attack_takes_one(name: str) -> None:
    from conftest import threat_for

    model = FORMS["submodule"]
    y = predictions(model, X[:3])
    known = ATTACKS.get(name).__dataclass_fields__
    short = {"steps": 3, "queries": 5, "restarts": 1, "targets": 2, "angles": 2, "shifts": 1}
    args: dict[str, Any] = {k: v for k, v in short.items() if k in known}
    x_adv = bt.attack(name, model, X[:3], y, threat=threat_for(name), surrogate="identity", **args)
    assert x_adv.shape == X[:3].shape


def test_the_outputs_are_those_of_the_model_and_the_gradient_that_of_the_stand_in() -> None:
    model = FORMS["submodule"]
    wrapped = Surrogate.parse("identity").attach(model, X)
    point = X.clone().requires_grad_(True)
    logits = wrapped(point)
    assert torch.equal(logits, model(X))
    quantized = (torch.round(7 * X) / 7).requires_grad_(True)
    (expected,) = torch.autograd.grad(NET(quantized)[:, 0].sum(), quantized)
    (grad,) = torch.autograd.grad(logits[:, 0].sum(), point)
    assert torch.equal(grad, expected)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("name", ["pgd", "apgd-ce", "fab-t"])
def test_declared_passes_hold_through_a_surrogate(name: str) -> None:
    """They are those of the model: a stand-in for the whole of it adds its own, uncounted."""
    threat = NormBall("Linf", 1e-6)  # no image is fooled
    model = FORMS["submodule"]
    y = predictions(model, X[:4])
    for surrogate in ("identity", straight_through):
        attack = create_attack(name, steps=4, surrogate=surrogate)
        options = AttackOptions(workers=1)
        counter = run_attack(attack, model, X[:4], y, threat, options=options).counter
        declared = attack_passes(attack, threat, 10)
        assert counter.forward.tolist() == [declared.forward] * 4
        assert counter.backward.tolist() == [declared.backward] * 4
        assert not counter.zero_gradient.any()


def test_the_preprocessing_is_found() -> None:
    assert find_gradient_stop(NET, X) is None
    stop = PassPoint("0", False), PassPoint("0", True)
    assert find_gradient_stop(FORMS["submodule"], X) == stop
    assert find_gradient_stop(FORMS["inline"], X) == (INPUT, PassPoint("net", False))


def test_a_named_submodule_and_a_black_box_model() -> None:
    model = FORMS["submodule"]
    y = predictions(model, X)
    args: dict[str, Any] = {"threat": "Linf:0.12", "steps": 5}
    by_name = bt.attack("pgd", model, X, y, surrogate={"0": "identity"}, **args)
    assert torch.equal(by_name, bt.attack("pgd", model, X, y, surrogate="0=identity", **args))
    wrapped = nn.ModuleDict({"net": model})
    wrapped.forward = model.forward
    assert Surrogate.parse("0=identity").attach(wrapped, X).replacements[0].target == (
        "net.0", True,
    )  # fmt: skip

    class BlackBox(nn.Module):
        has_gradients = False

        def forward(self, x: Tensor) -> Tensor:
            return NET(x).detach()

    with pytest.raises(UserError, match="needs gradients"):
        bt.attack("pgd", BlackBox(), X, y, **args)
    x_adv = bt.attack("pgd", BlackBox(), X, y, surrogate=straight_through, **args)
    assert (predictions(NET, x_adv) == y).float().mean() < 0.5


def test_a_function_in_a_file_is_named_with_the_hash_of_its_code(tmp_path: Path) -> None:
    file = tmp_path / "soft.py"
    file.write_text("def soft(x):\n    return x\n")
    before = str(Surrogate.parse(f"{file}:soft"))
    assert before.startswith("soft.py:soft (sha256 ")
    assert str(Surrogate.parse({"quantize": f"{file}:soft"})) == f"quantize={before}"
    file.write_text("def soft(x):\n    return 2 * x\n")
    assert str(Surrogate.parse(f"{file}:soft")) != before
    assert str(Surrogate.parse(lambda x: x)) != str(Surrogate.parse(lambda x: 2 * x))


@pytest.mark.parametrize(
    ("surrogate", "message"),
    [
        ("identical", "must be identity, FILE.py:FUNCTION"),
        ("quant=identity", "no submodule 'quant'; it has 0, 1, 1.0, "),
        (3, "`surrogate` must be identity"),
        (lambda x: "x", "must return a tensor"),
        (lambda x: x[:, :1], "the shape that it stands for"),
        (lambda x: x.detach(), "no gradient reaches the input"),
    ],
)
def test_mistakes_are_explained(surrogate: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        bt.attack("pgd", FORMS["submodule"], X, X[:, 0, 0, 0].long(), threat="Linf:0.1",
                  surrogate=surrogate)  # fmt: skip


def test_a_model_without_such_preprocessing_is_refused() -> None:
    with pytest.raises(UserError, match="no preprocessing to find; name the submodule"):
        Surrogate.parse("identity").attach(NET, X)


def test_the_text_form_needs_no_torch(tmp_path: Path) -> None:
    assert split_surrogate("a.b=identity, f.py:g") == {"a.b": "identity", "": "f.py:g"}
    with pytest.raises(UserError, match="two stand-ins"):
        split_surrogate("identity,identity")
    with pytest.raises(UserError, match="does not exist"):
        check_surrogate(f"{tmp_path}/none.py:f")
