"""Analyses of models that are not runs: files, exported folders, timm names, several at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from buttress.analysis import NamedModel, analyze_group, analyze_model
from buttress.cli.main import run_cli
from buttress.data import load_dataset
from buttress.errors import UserError
from buttress.models import create_model
from buttress.models.loading.core import ModelRequest
from buttress.training import train

ROOT = Path(__file__).parents[2]
PUBLISHED_JUDGES = (
    "convnext_xlarge.fb_in22k_ft_in1k",
    "beit_large_patch16_224.in22k_ft_in22k_in1k",
    "swin_large_patch4_window7_224.ms_in22k_ft_in1k",
)
RECIPE = """
epochs: 1
batch_size: 32
objective: {name: pgd_at, args: {steps: 1}}
threat: Linf:0.03
optimizer: {name: sgd, lr: 0.01}
validation: {attack: {name: pgd, args: {steps: 1}}, limit: 8}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A robust run, a file of weights and an exported folder, all on digits."""
    place = tmp_path_factory.mktemp("sources")
    (place / "recipe.yaml").write_text(RECIPE)
    train("resnet_tiny", "digits", place / "recipe.yaml", place / "run", limit=64, device="cpu")
    weights = create_model("vit_tiny", seed=1).state_dict()
    torch.save({"state_dict": weights}, place / "vit.pt")
    (place / "exported").mkdir()
    save_file(create_model("wrn_tiny", seed=2).state_dict(), place / "exported/model.safetensors")
    card = {"model": "wrn_tiny", "num_classes": 10, "image_size": 32}
    (place / "exported" / "buttress.json").write_text(json.dumps(card))
    return place


@pytest.fixture
def run_json(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    monkeypatch.chdir(place)

    def run(*arguments: str) -> dict[str, Any]:
        code = run_cli(["analyze", *arguments, "--json"])
        output = capsys.readouterr()
        assert code == 0, output.err
        content: dict[str, Any] = json.loads(output.out)
        return content

    return run


SOURCES = ["run", "vit.pt", "exported", "timm:test_vit", "resnet_tiny"]
SHORT = ("--set", "args.steps=2", "--limit", "8", "--model", "vit_tiny")


def test_one_model_of_each_kind(run_json: Any, place: Path) -> None:
    result = run_json("perturbations", *SOURCES, *SHORT, "--out", "single", "--set", "examples=2")
    labels = ["resnet_tiny / recipe", "vit.pt (vit_tiny)", *SOURCES[2:]]
    assert list(result) == labels
    assert (place / "run" / "analysis" / "perturbations.json").is_file()
    folders = {path.parent.name for path in (place / "single").rglob("perturbations.json")}
    assert folders == {"vit-pt-vit_tiny", "exported", "timm-test_vit", "resnet_tiny"}
    # The model of a file is the one in the file, and it is analyzed as in Python.
    data = load_dataset("digits", limit=8)
    named = NamedModel("vit.pt", data, ModelRequest(model="vit_tiny"))
    args = {"args": {"steps": 2}, "examples": 2}
    again = analyze_model("perturbations", named.load_subject(), Path("other"), args=args)
    assert again.model_dump(mode="json") == result["vit.pt (vit_tiny)"]


def test_without_a_run_the_images_are_named(
    run_json: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_json("stability", "exported", *SHORT, "--data", "digits")
    assert result["exported"]["images"] == 8
    for arguments, message in (
        (["stability", "exported"], "--data is required"),
        (["stability", "run/eval-missing"], "run/eval-missing does not exist; MODEL must be"),
        (["tradeoff", "run", "exported"], "compares what is stored in runs"),
        (["semantics", "run", "exported", "--data", "cifar10"], "cifar10"),
    ):
        assert run_cli(["analyze", *arguments]) != 0
        assert message in capsys.readouterr().err


def test_several_kinds_are_compared(run_json: Any) -> None:
    (result,) = run_json("transferability", *SOURCES, *SHORT, "--out", "group").values()
    assert result["runs"][1:] == ["vit.pt (vit_tiny)", *SOURCES[2:]]
    assert len(result["attack_success_rate"]) == len(SOURCES)


SMALL_JUDGES = """
from timm.models.beit import Beit
from timm.models.swin_transformer import SwinTransformer

def small_beit(num_classes):
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
    return Beit(**size, num_classes=num_classes)

def small_swin(num_classes):
    return SwinTransformer(
        img_size=32, patch_size=4, window_size=4, embed_dim=16, depths=(1, 1), num_heads=(2, 2),
        num_classes=num_classes,
    )
"""


def test_judges_by_timm_names(run_json: Any, place: Path) -> None:
    """The table of the thesis: ConvNeXt, BEiT and Swin as judges, here small and random."""
    (place / "small_judges.py").write_text(SMALL_JUDGES)
    judges = ["timm:test_convnext", "small_judges.py:small_beit", "small_judges.py:small_swin"]
    names = [judge.partition(":")[2] for judge in judges]
    (result,) = run_json(
        "semantics", "run", "exported", *judges, "--set", f"judges=[{', '.join(names)}]",
        "--set", "steps=2", "--limit", "8", "--out", "judged",
    ).values()  # fmt: skip
    assert list(result["by_run"]) == ["run", "exported"]
    assert all(list(row["judges"]) == names for row in result["by_run"].values())
    trained = [row["is_adversarially_trained"] for row in result["by_run"].values()]
    assert trained == [True, None]


@pytest.mark.parametrize("name", PUBLISHED_JUDGES)
def test_the_documented_judges_have_published_weights(name: str) -> None:
    """Their weights are not loaded here; timm knows them, for the 1000 classes of ImageNet."""
    from timm.models import get_pretrained_cfg

    published = get_pretrained_cfg(name, allow_unregistered=False)
    assert published is not None
    assert published.num_classes == 1000
    assert published.input_size == (3, 224, 224)
    assert f"timm:{name}" in (ROOT / "docs" / "analyses" / "semantics.md").read_text("utf-8")


def test_a_model_that_changed_is_computed_again(place: Path, tmp_path: Path) -> None:
    data, file = load_dataset("digits", limit=4), tmp_path / "weights.pt"
    results = []
    for seed in (1, 1, 3):
        torch.save(create_model("vit_tiny", seed=seed).state_dict(), file)
        member = NamedModel(str(file), data, ModelRequest(model="vit_tiny"))
        members: list[Path | NamedModel] = [place / "run", member]
        args = {"args": {"steps": 2}}
        analyze_group("transferability", members, tmp_path, args=args, limit=4)
        results.append((tmp_path / "transferability.json").stat().st_mtime_ns)
    assert results[0] == results[1] < results[2]


def test_a_file_needs_its_model(place: Path) -> None:
    named = NamedModel(str(place / "vit.pt"), load_dataset("digits", limit=4))
    with pytest.raises(UserError, match="contains weights only"):
        named.load_subject()
