"""Attack objects and `bt.attack`: the forms that users of other libraries type."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import buttress as bt
from buttress.attacks.core import ATTACKS
from buttress.engine import ConfiguredAttack
from buttress.engine.configured import FOREIGN_ATTACKS
from buttress.errors import UserError
from conftest import Linear, images, small_net, threat_for

MODEL = Linear(3 * 8 * 8, 5)
X, Y = images(6, classes=5)
EPS = 8 / 255


@pytest.mark.parametrize("name", ATTACKS.names())
def test_every_attack_has_an_object(name: str) -> None:
    cls = ATTACKS.get(name)
    factory = getattr(bt.attacks, cls.__name__)
    assert getattr(bt.attacks, name.replace("-", "_").upper()) is factory
    assert cls.__name__ in dir(bt.attacks)
    accepted = set(inspect.signature(factory).parameters)
    assert {*inspect.signature(cls).parameters, "eps", "norm", "threat", "seed"} <= accepted
    assert ("alpha" in accepted) == ("rel_step" in accepted)
    assert "x_adv = bt.attacks." in str(inspect.getdoc(factory))
    args = {"sources": [MODEL]} if name == "transfer" else {}
    configured = factory(threat=threat_for(name), **args)
    assert str(configured.threat) in repr(configured)


def test_an_object_gives_what_the_function_gives() -> None:
    configured = bt.attacks.PGD(eps=EPS, norm="Linf", steps=7, seed=3)
    expected = bt.attack("pgd", MODEL, X, Y, threat="Linf:8/255", steps=7, seed=3)
    assert torch.equal(configured(MODEL, X, Y), expected)
    by_eps = bt.attack("pgd", MODEL, X, Y, eps=EPS, steps=7, seed=3, batch_size=2)
    assert torch.equal(by_eps, expected)
    assert not torch.equal(bt.attacks.PGD(eps=EPS, steps=7)(MODEL, X, Y), expected)
    for copied in (copy.deepcopy(configured), pickle.loads(pickle.dumps(configured))):
        assert torch.equal(copied(MODEL, X, Y), expected)
    assert repr(configured) == "PGD(threat='Linf:8/255', steps=7)"
    assert configured.run(MODEL, X, Y).fooled.shape == (6,)


def test_ids_decide_the_random_start() -> None:
    configured = bt.attacks.PGD(eps=EPS, steps=1)
    ids = torch.arange(100, 106)
    shuffled = torch.tensor([5, 3, 1, 0, 2, 4])
    x_adv = configured(MODEL, X, Y, ids=ids)
    again = configured(MODEL, X[shuffled], Y[shuffled], ids=ids[shuffled].tolist())
    assert torch.equal(again, x_adv[shuffled])


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X.numpy(), Y.numpy()),
        (X.double().numpy(), Y.tolist()),
        (X.tolist(), Y.numpy().astype(np.uint16)),
        (X, Y.to(torch.uint8)),
    ],
    ids=["numpy", "float64 and list", "lists and uint16", "uint8 labels"],
)
def test_numpy_arrays_and_lists_are_accepted(x: Any, y: Any) -> None:
    expected = bt.attack("pgd", MODEL, X, Y, eps=EPS, steps=3)
    x_adv = bt.attack("pgd", MODEL, x, y, eps=EPS, steps=3)
    assert x_adv.dtype == torch.float32
    assert torch.equal(x_adv, expected)


def test_alpha_is_the_step_size_itself() -> None:
    by_alpha = bt.attacks.PGD(eps=0.5, norm="L2", alpha=0.1)
    assert by_alpha.attack == bt.attacks.PGD(threat="L2:0.5", rel_step=0.2).attack
    x_adv = bt.attacks.PGD(eps=EPS, alpha=1 / 255, steps=1, start="clean")(small_net(), X, Y)
    assert (x_adv - X).abs().max() == pytest.approx(1 / 255, abs=1e-6)


def test_an_eps_alone_is_in_the_norm_of_the_attack() -> None:
    assert str(bt.attacks.Square(eps=EPS).threat) == "Linf:8/255"
    assert str(bt.attacks.SparsePGD(eps=5).threat) == "L0:5"
    assert str(bt.attacks.PatchPGD(eps=3).threat) == "patch:3"
    assert str(bt.attacks.DenseL1PGD(eps=12).threat) == "L1:12"


def test_passes_are_averaged_where_the_model_is_noisy() -> None:
    configured = bt.attacks.PGD(eps=EPS, steps=2, eot_samples="auto")
    assert "eot_samples='auto'" in repr(configured)
    assert torch.equal(configured(MODEL, X, Y), bt.attacks.PGD(eps=EPS, steps=2)(MODEL, X, Y))


def untyped(value: Any) -> Any:
    """A value of a type that type checkers would refuse."""
    return value


def pgd(**args: Any) -> ConfiguredAttack:
    return bt.attacks.PGD(**{"eps": EPS, "steps": 2, **args})


# What a user of another library types, and words of the answer.
MISTAKES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "model first": (lambda: bt.attacks.PGD(MODEL, eps=EPS), ("by name", "(model, x, y)", "Linear")),
    "no model": (lambda: pgd()(untyped(X), Y, X), ("got Tensor", "(model, x, y)")),
    "name of a model": (lambda: pgd()(untyped("vit_tiny"), X, Y), ("bt.load_model('vit_tiny')",)),
    "function": (lambda: pgd()(untyped(abs), X, Y), ("torch.nn.Module", "forward()")),
    "no eps": (lambda: bt.attacks.PGD(), ("threat='Linf:8/255'", "eps=8/255 and norm='Linf'")),
    "norm alone": (lambda: bt.attacks.PGD(norm="L2"), ("'L2' without an eps",)),
    "eps of 8": (lambda: pgd(eps=8), ("write 8/255",)),
    "eps twice": (lambda: pgd(threat="Linf:8/255"), ("given once",)),
    "unknown norm": (lambda: pgd(norm="L3"), ("the threat model must be one of", "L3")),
    "norm of another attack": (lambda: bt.attacks.GAMA(eps=1, norm="L2"), ("takes Linf",)),
    "step twice": (lambda: pgd(alpha=0.1, rel_step=0.2), ("given once", "alpha / eps")),
    "alpha without eps": (lambda: pgd(eps=0, alpha=0.1), ("`rel_step`",)),
    "alpha as text": (lambda: pgd(alpha="2/255"), ("`alpha` must be a step size", "'2/255'")),
    "n_iter": (lambda: pgd(n_iter=20), ("'n_iter'", "it is called `steps`")),
    "random_start": (lambda: pgd(random_start=True), ("it is called `start`",)),
    "eps_step": (lambda: pgd(eps_step=0.1), ("it is called `alpha`",)),
    "alpha of square": (lambda: bt.attacks.Square(eps=EPS, alpha=1), ("accepted: queries",)),
    "no batch": (lambda: pgd(batch_size=0), ("`batch_size >= 1`",)),
    "bs": (lambda: pgd(bs=4), ("it is called `batch_size`",)),
    "misspelt argument": (lambda: pgd(stps=3), ("unknown argument 'stps'", "accepted: steps")),
    "NHWC": (lambda: pgd()(MODEL, X.permute(0, 2, 3, 1), Y), ("(N, H, W, C)", "permute")),
    "one image": (lambda: pgd()(MODEL, X[0], Y[:1]), ("(3, 8, 8)", "images[None]")),
    "uint8": (lambda: pgd()(MODEL, (X * 255).byte(), Y), ("uint8", "x.float() / 255")),
    "0 to 255": (lambda: pgd()(MODEL, X * 255, Y), ("divide by 255",)),
    "normalized": (lambda: pgd()(MODEL, X - 0.5, Y), ("normalization into the model",)),
    "one-hot": (lambda: pgd()(MODEL, X, torch.eye(5)[Y]), ("(6, 5)", "y.argmax(1)")),
    "float labels": (lambda: pgd()(MODEL, X, Y.float()), ("float32", "y.long()")),
    "few labels": (lambda: pgd()(MODEL, X, Y[:2]), ("shape (6,)", "of shape (2,)")),
    "stepsize": (lambda: pgd(stepsize=0.1), ("it is called `alpha`",)),
    "epsilon": (lambda: bt.attacks.PGD(epsilon=EPS), ("it is called `eps`",)),
    "epsilons": (lambda: bt.attacks.PGD(epsilons=[EPS]), ("bt.accuracy_curve",)),
    "several eps": (lambda: pgd(eps=[EPS]), ("eps must be a number",)),
    "device": (lambda: pgd(device="cuda"), ("model.to(device)",)),
    "no labels": (lambda: untyped(pgd())(MODEL, X), ("'y'", "attack(model, images, labels)")),
    "a dataset": (lambda: untyped(pgd())(MODEL, (X, Y)), ("data.images, data.labels",)),
    "inputs=": (lambda: untyped(pgd())(MODEL, inputs=X, labels=Y), ("it is called `x`",)),
    "targeted=": (lambda: untyped(pgd())(MODEL, X, Y, targeted=True), ("target='least_likely'",)),
    "weights": (lambda: pgd()(untyped(MODEL.state_dict()), X, Y), ("load_state_dict()",)),
    "path": (lambda: pgd()(untyped(Path("runs/r1")), X, Y), ("bt.load_model('runs/r1')",)),
    "the module": (lambda: untyped(bt.attacks).pgd(MODEL, X, Y), ("bt.attacks.PGD(eps=8/255)",)),
    "the model as a name": (lambda: untyped(bt.attack)(MODEL, X, Y, "pgd"), ("name of an attack",)),
    "by position": (
        lambda: untyped(bt.attack)("pgd", MODEL, X, Y, EPS), ("too many", "threat='Linf:8/255'"),
    ),
    "labels beyond": (lambda: pgd()(MODEL, X, Y + 5), ("the model returns 5 classes",)),
    "column of labels": (lambda: pgd()(MODEL, X, Y[:, None]), ("pass y[:, 0]",)),
    "texts as labels": (lambda: pgd()(MODEL, X, ["cat"] * 6), ("labels must be an array",)),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_answered(case: str) -> None:
    call, words = MISTAKES[case]
    with pytest.raises(UserError) as caught:
        call()
    assert [w for w in words if w not in str(caught.value)] == [], str(caught.value)


# Names that the package does not have, and words of the answer.
NAMES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "PGD": (lambda: untyped(bt).PGD, ("bt.attacks.PGD(eps=8/255)(model, x, y)",)),
    "fgsm": (lambda: untyped(bt.attacks).fgsm, ("bt.attacks.FGSM(eps=8/255)(model, x, y)",)),
    "APGD": (lambda: bt.attacks.APGD, ("APGDCE", "AutoAttack")),
    "LinfPGD": (lambda: bt.attacks.LinfPGD, ("PGD(eps=8/255, norm='Linf')",)),
    "ProjectedGradientDescent": (lambda: bt.attacks.ProjectedGradientDescent, ("PGD(eps=8/255",)),
    "DeepFool": (lambda: bt.attacks.DeepFool, ("bt.minimum_norms",)),
    "perturb": (lambda: pgd().perturb(X, Y), ("PGD has no attribute 'perturb'", "attack(model, x")),
    "generate": (lambda: pgd().generate(X), ("x_adv = attack(model, x, y)",)),
    "load_cifar10": (lambda: untyped(bt).load_cifar10, ("did you mean 'load_dataset'",)),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_other_libraries_are_answered(name: str) -> None:
    use, words = NAMES[name]
    with pytest.raises(AttributeError) as caught:
        use()
    assert [w for w in words if w not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize("ours", FOREIGN_ATTACKS.values())
def test_the_attacks_that_are_suggested_exist(ours: str) -> None:
    name = re.match(r"\w+", ours)
    assert name is not None
    assert name[0] == "a" or callable(getattr(bt.attacks, name[0]))
    if "(" in ours and ours.startswith(name[0] + "("):
        assert eval(f"bt.attacks.{ours}", {"bt": bt})


@pytest.mark.parametrize("norm", [2, "2", "l2", "L2"])
def test_norms_as_other_libraries_write_them(norm: Any) -> None:
    assert str(bt.attacks.PGD(eps=0.5, norm=norm).threat) == "L2:0.5"
    assert str(bt.attacks.PGD(eps=EPS, norm=untyped(np.inf)).threat) == "Linf:8/255"
    assert str(bt.attacks.PGD(eps=EPS, threat="Linf").threat) == "Linf:8/255"


def test_an_unknown_attack_has_suggestions() -> None:
    with pytest.raises(AttributeError, match="no attack 'PGDD'; did you mean 'PGD'"):
        _ = bt.attacks.PGDD
    with pytest.raises(AttributeError, match="no attack 'no_such_name'"):
        _ = bt.attacks.no_such_name
