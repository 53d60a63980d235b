"""Calls of the public functions as users of other libraries type them, each with its answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import buttress as bt
from buttress.errors import ArgumentError, UserError


def untyped(value: Any) -> Any:
    """A value of a type that type checkers would refuse."""
    return value


API = untyped(bt)
NET = nn.Flatten()

MISTAKES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    # threat models
    "Threat(text)": (lambda: API.Threat("Linf:8/255"), ("bt.Threat.parse('Linf:8/255')",)),
    "Threat(norm, eps)": (lambda: API.Threat("L2", 0.5), ("bt.Threat.parse('L2:",)),
    "Threat(eps=)": (lambda: API.Threat(norm="Linf", eps=8 / 255), ("eps= and norm=",)),
    "eps of 8": (lambda: bt.NormBall("Linf", 8), ("write 8/255",)),
    # models
    "timm's name": (lambda: bt.create_model("resnet18"), ("did you mean 'timm:resnet18'",)),
    "RobustBench's name": (
        lambda: bt.load_model("Carmon2019Unlabeled"),
        ("robustbench:cifar10/Linf/Carmon2019Unlabeled",),
    ),
    "RobustBench's call": (
        lambda: API.load_model("Standard", dataset="cifar10", threat_model="Linf"),
        ("there is no argument 'dataset'", "robustbench:cifar10/Linf/NAME"),
    ),
    "pretrained=": (
        lambda: API.create_model("resnet_18", pretrained=True), ("bt.load_model('timm:NAME'",),
    ),
    "n_classes=": (lambda: API.create_model("resnet_18", n_classes=3), ("called `num_classes`",)),
    "classes as text": (
        lambda: API.create_model("resnet_18", num_classes="3"), ("must be an integer",),
    ),
    "filter=": (lambda: API.list_models(filter="vit"), ("no argument 'filter'",)),
    # datasets
    "train=": (lambda: API.load_dataset("digits", train=True), ("split='train'",)),
    "root=": (lambda: API.load_dataset("digits", root="data"), ("folder:PATH",)),
    "n_examples=": (lambda: API.load_dataset("digits", n_examples=9), ("called `limit`",)),
    "validation": (lambda: bt.load_dataset("digits", split="validation"), ("write val",)),
    "slice of a split": (lambda: bt.load_dataset("digits", "test[:9]"), ("`limit`",)),
    "Path": (lambda: bt.load_dataset(Path("/")), ("folder:/",)),
    "unknown": (lambda: bt.load_dataset("mnist"), ("folder:PATH or npz:PATH",)),
    "splits of a dataset": (
        lambda: untyped(bt.load_dataset("digits"))["train"], ("bt.load_dataset(NAME, split=",),
    ),
    # evaluation
    "benchmark by position": (
        lambda: API.benchmark(NET, 5, "cifar10", "Linf"), ("n_examples=1000",),
    ),
    "evaluate without data": (lambda: API.evaluate(NET), ("'data'", "bt.evaluate(model, data")),
    "compare nothing": (lambda: bt.compare("runs/a", "runs/b"), ("runs/a does not exist",)),
    # training, analysis and report
    "train without recipe": (
        lambda: API.train("resnet_tiny", "digits"), ("'recipe'", "'quickstart-at', out="),
    ),
    "train(epochs=)": (
        lambda: API.train("resnet_tiny", "digits", "smoke-at", "x", epochs=1),
        ("overrides=('epochs=",),
    ),
    "train a module": (
        lambda: API.train(NET, "digits", "smoke-at", "x"), ("file.py:function", "got Flatten"),
    ),
    "train on arrays": (
        lambda: API.train("resnet_tiny", ([], []), "smoke-at", "x"), ("folder:PATH", "got tuple"),
    ),
    "finetune without out": (
        lambda: API.finetune("zoo:vit_mini", "digits", "smoke-at"), ("'out'", "bt.finetune("),
    ),
    "analyze a module": (lambda: API.analyze("sparsity", NET), ("must be a run", "got Flatten")),
    "report without out": (lambda: API.write_report("runs"), ("bt.write_report(['runs'],",)),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_answered_in_one_line(case: str) -> None:
    call, words = MISTAKES[case]
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert [w for w in words if w not in message] == [], message
    assert "\n" not in message


def test_a_wrong_call_is_a_type_error_too_and_signatures_are_kept() -> None:
    with pytest.raises(TypeError) as caught:
        API.evaluate(NET)
    assert isinstance(caught.value, ArgumentError)
    for function in (bt.evaluate, bt.load_model, bt.load_dataset, bt.train, bt.attack):
        assert next(iter(inspect.signature(function).parameters)) not in ("args", "kwargs")
        assert inspect.getdoc(function)


def test_names_match_a_pattern_as_in_timm() -> None:
    assert "resnet_18" in bt.list_models("resnet*")
    assert all(name.startswith("resnet") for name in bt.list_models("resnet*"))


def test_a_dataset_is_one_of_torch_too() -> None:
    data = bt.load_dataset("digits", limit=5)
    image, label = data[1]
    assert (tuple(image.shape), label) == ((3, 32, 32), int(data.labels[1]))
    assert [label for _, label in data] == data.labels.tolist()  # type: ignore[attr-defined]
    assert data[2:].ids.tolist() == data.ids[2:].tolist()
    with pytest.raises(AttributeError, match=r"use \.labels"):
        _ = data.targets
