"""A network in an ONNX file: the same answers, black-box attacks only, and clear refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import buttress as bt
from buttress.attacks import ATTACKS
from buttress.attacks.core import create_attack
from buttress.cli.main import run_cli
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.errors import UserError
from buttress.models import load_model
from buttress.models.loading.checkpoint import content_digest
from buttress.threats.norm_ball import NormBall
from conftest import images, norms_of, threat_for
from onnx_file import message, write_onnx

SOURCE = np.random.default_rng(0)
WEIGHT, BIAS = SOURCE.normal(size=(192, 4)) / 4, SOURCE.normal(size=4)
BLIND = [e.name for e in ATTACKS if not e.value.needs_grad]


def logits(x: Tensor) -> Tensor:
    return torch.from_numpy(x.flatten(1).double().numpy() @ WEIGHT + BIAS).float()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_onnx(tmp_path / "net.onnx", WEIGHT, BIAS, (3, 8, 8))


def test_without_the_package_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "net.onnx").touch()
    with pytest.raises(UserError, match=r"pip install buttress\[onnx\]"):
        load_model(tmp_path / "net.onnx")


def test_it_answers_as_the_network_does(file: Path) -> None:
    model = load_model(file)
    x, _ = images(5)
    torch.testing.assert_close(model(x), logits(x))
    assert (model.num_classes, model.image_size, model.in_channels) == (4, 8, 3)
    assert model(x[:0]).shape == (0, 4)
    normal = load_model(file, mean=0.5, std=0.25)
    torch.testing.assert_close(normal(x), logits((x - 0.5) / 0.25))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_file_for_a_fixed_number_of_images(file: Path, tmp_path: Path, rows: int) -> None:
    fixed = write_onnx(tmp_path / "fixed.onnx", WEIGHT, BIAS, (3, 8, 8), rows)
    x, _ = images(7)
    torch.testing.assert_close(load_model(fixed)(x), logits(x))


def test_other_files_have_other_records(file: Path, tmp_path: Path) -> None:
    """Records are known by the model's tensors, which are all inside the file."""
    other = write_onnx(tmp_path / "other.onnx", WEIGHT + 1, BIAS, (3, 8, 8))
    first, second = (content_digest(load_model(f).state_dict()) for f in (file, other))
    assert first != second
    assert first == content_digest(load_model(file).state_dict())


@pytest.mark.parametrize("name", ATTACKS.names())
def test_black_box_attacks_run_and_the_others_say_which_do(file: Path, name: str) -> None:
    model = load_model(file)
    x, _ = images(6)
    y = model(x).argmax(1)
    short, grid = {"queries": 200}, {"angles": 5, "shifts": 3}
    args: dict[str, dict[str, Any]]
    args = {"transfer": {"sources": [model], "attack": "square", "args": short}, "square": short,
            "random_search": short, "grid": grid}  # fmt: skip
    threat = threat_for(name, {"Linf": 0.1, "L1": 8.0}.get(next(iter(norms_of(name)), ""), 1.0))
    if name in BLIND:
        x_adv = bt.attack(name, model, x, y, threat=threat, **args.get(name, {}))
        assert (model(x_adv).argmax(1) != y).any()
        return
    with pytest.raises(UserError, match=r"needs gradients.*square"):
        bt.attack(name, model, x, y, threat=threat)


def test_a_custom_ensemble_of_black_box_attacks_runs(file: Path) -> None:
    model = load_model(file)
    x, _ = images(4)
    y = model(x).argmax(1)
    args: dict[str, Any] = {
        "version": "custom",
        "attacks": ["noise", {"attack": "square", "queries": 100}],
    }
    x_adv = bt.attack("autoattack", model, x, y, threat="Linf:0.1", **args)
    assert (model(x_adv).argmax(1) != y).any()


def test_several_processes_give_the_same_verdicts(file: Path) -> None:
    model = load_model(file)
    x, _ = images(10)
    y = model(x).argmax(1)
    square, threat = create_attack("square", queries=200), NormBall("Linf", 0.02)
    one, two = (
        run_attack(square, model, x, y, threat, options=AttackOptions(workers=w)) for w in (1, 2)
    )
    assert torch.equal(one.fooled, two.fooled)
    assert 0 < int(one.fooled.sum()) < 10


def test_an_evaluation_warns_that_it_is_an_upper_bound(file: Path, tmp_path: Path) -> None:
    model = load_model(file)
    x, _ = images(6)
    data = bt.Dataset.from_arrays(x, model(x).argmax(1), classes=list("abcd"))
    found = bt.evaluate(model, data, ["clean", "noise-linf"], out=tmp_path / "out")
    assert found.accuracy["clean"] == 1
    assert any("provides no gradients" in w for w in found.warnings)
    with pytest.raises(UserError, match="needs gradients"):  # before anything is attacked
        bt.evaluate(model, data, ["square-linf", "pgd-linf"], out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = SOURCE.normal(size=(3072, 10)) / 10
    file = write_onnx(tmp_path / "net.onnx", weight, np.zeros(10), (3, 32, 32))
    args = ["evaluate", str(file), "--data", "digits", "--limit", "8", "--json", "--suite"]
    assert run_cli([*args, "clean,noise-linf"]) == 0
    assert set(json.loads(capsys.readouterr().out)["attacks"]) == {"clean", "noise-linf"}
    assert run_cli([*args, "quickstart"]) == 2
    assert "needs gradients" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("image", "says"), [((8, 8, 3), "channels last"), ((3, 8), "one float input")]
)
def test_other_inputs_are_refused(file: Path, image: tuple[int, ...], says: str) -> None:
    write_onnx(file, SOURCE.normal(size=(int(np.prod(image)), 4)), BIAS, image)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=says):
        load_model(file)


def test_a_damaged_file_and_wrong_images_are_named(file: Path) -> None:
    model = load_model(file)
    with pytest.raises(UserError, match="does not take images"):
        model(torch.rand(1, 3, 9, 9))
    whole = file.read_bytes()
    for content in (b"", b"hello", whole[:100], message((1, 8))):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"damaged or not an ONNX|must"):
            load_model(file)


def test_it_cannot_be_trained_on(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be fine-tuned: .*no gradients"):
        bt.finetune(file, "digits", "mini-at", tmp_path / "run")


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_a_file_that_torch_writes_gives_the_logits_of_the_network(tmp_path: Path) -> None:
    network, x = (
        bt.create_model("resnet_tiny", num_classes=4, seed=0).eval(),
        torch.rand(3, 3, 32, 32),
    )
    path = tmp_path / "resnet.onnx"
    torch.onnx.export(
        network, (x,), str(path), dynamo=True, dynamic_shapes=({0: torch.export.Dim("n")},)
    )
    model = load_model(path)
    torch.testing.assert_close(model(x), network(x).detach(), rtol=1e-4, atol=1e-5)
    assert model(x[:1]).shape == (1, 4)
