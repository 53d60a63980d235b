"""Checkpoints with the tensor names of the RobustWRN authors: load, evaluate, analyze, finetune."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from buttress.cli.main import run_cli
from buttress.errors import UserError
from buttress.models import Classifier, Normalize, create_model, load_model, stage_config
from buttress.models.families.wideresnet import stage_channels
from buttress.models.loading.load import load_weights
from buttress.models.loading.robust_wrn import infer_robust_wrn, rename_robust_wrn

MODEL = "wrn_d1-2-1_w1-1-2"  # the last stage widens by four, the second keeps a block of its width
OUR_TO_THEIR = (
    (r"^stem\.", "stem_conv."),
    (r"^stages\.(\d+)\.(\d+)\.norm([12])\.", r"blocks.\1.layer.\2.bn\3."),
    (r"^stages\.(\d+)\.(\d+)\.shortcut\.", r"blocks.\1.layer.\2.convShortcut."),
    (r"^stages\.(\d+)\.(\d+)\.", r"blocks.\1.layer.\2."),
    (r"^norm\.", "bn1."),
    (r"^head\.", "fc."),
)


def authors_state(model: Classifier, prefix: str = "") -> dict[str, Tensor]:
    state = {}
    for name, value in model.net.state_dict().items():
        for pattern, replacement in OUR_TO_THEIR:
            name, changes = re.subn(pattern, replacement, name)
            if changes:
                break
        state[prefix + name] = value
    return state


@pytest.fixture(scope="module")
def model() -> Classifier:
    model = create_model(MODEL, seed=3)
    model(torch.rand(8, 3, 32, 32))  # moves the statistics of the norms
    return model.eval()


@pytest.fixture(scope="module")
def checkpoint(model: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("authors") / "checkpoint.pth"
    torch.save({"epoch": 99, "model_state_dict": authors_state(model, "module.")}, path)
    return path


@pytest.mark.parametrize("prefix", ["", "module.", "module.model."])
@pytest.mark.parametrize("given", [None, MODEL, "timm"])
def test_logits_are_bit_equal(
    model: Classifier, prefix: str, given: str | None, tmp_path: Path
) -> None:
    torch.save({"model_state_dict": authors_state(model, prefix)}, tmp_path / "file.pth")
    if given == "timm":
        with pytest.raises(UserError, match="does not match model"):
            load_model(tmp_path / "file.pth", model="timm:resnet10t")
        return
    loaded = load_model(tmp_path / "file.pth", model=given)
    x = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


def test_the_network_is_inferred_from_the_shapes(model: Classifier) -> None:
    inferred = infer_robust_wrn(authors_state(model))
    assert inferred == (MODEL, {"num_classes": 10, "in_channels": 3})
    # So WRN-34-R is found as wrn_d5-5-5_w20-20-8.
    assert stage_config("wrn_34_r").channels == stage_channels(20, 20, 8)


def test_other_state_dicts_keep_their_names(model: Classifier) -> None:
    assert rename_robust_wrn(model.net.state_dict()) is None
    assert rename_robust_wrn({**authors_state(model), "gate.weight": torch.ones(1)}) is None
    assert rename_robust_wrn({"stem_conv.weight": torch.ones(1)}) is None


def test_a_network_with_their_names_loads_as_it_is() -> None:
    """Whoever brings the authors' own class needs no renaming."""

    net = nn.ModuleDict({"stem_conv": nn.Conv2d(3, 4, 3, bias=False), "fc": nn.Linear(4, 10)})
    block = nn.ModuleDict({"conv1": nn.Conv2d(4, 4, 3, bias=False)})
    net["blocks"] = nn.ModuleList([nn.ModuleDict({"layer": nn.Sequential(block)})])
    state = {f"module.{n}": torch.rand_like(v) for n, v in net.state_dict().items()}
    shape = {"num_classes": 10, "image_size": 32, "in_channels": 3}
    load_weights(Classifier(net, Normalize(0.0, 1.0, 3), "theirs", shape), state, "file")
    assert all(torch.equal(v, state[f"module.{n}"]) for n, v in net.state_dict().items())


RECIPE = """
epochs: 1
batch_size: 16
objective: standard
threat: Linf:0.03
optimizer: {name: sgd, lr: 0.001}
validation: {attack: {name: pgd, args: {steps: 1}}, limit: 8}
"""


def test_evaluate_analyze_and_finetune_run_on_it(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_command(*arguments: object) -> dict[str, Any]:
        assert run_cli([*map(str, arguments), "--json"]) == 0
        content: dict[str, Any] = json.loads(capsys.readouterr().out)
        return content

    evaluated = run_command(
        "evaluate", checkpoint, "--data", "digits", "--limit", 4, "--suite", "clean,pgd:Linf:0.03"
    )
    assert evaluated["worst_case"] is not None
    analyzed = run_command(
        "analyze", "stability", checkpoint, "--data", "digits", "--limit", 4, "--set",
        "args.steps=2", "--out", tmp_path / "analysis",
    )  # fmt: skip
    assert analyzed["checkpoint.pth"]["images"] == 4
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    tuned = run_command(
        "finetune", checkpoint, "--data", "digits", "--recipe", tmp_path / "recipe.yaml",
        "--limit", 32, "--out", tmp_path / "run", "--device", "cpu",
    )  # fmt: skip
    assert tuned["finetuned_from"]["initialized"] == []
    assert tuned["finetuned_from"]["unused"] == []
