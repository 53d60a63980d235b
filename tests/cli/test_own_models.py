"""Models of one's own on the command line: a file of weights, a function, an exported folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import buttress as bt
from buttress.cli.main import run_cli
from buttress.results.run import Run, shorten_paths

NET = """
from torch import nn


def build(num_classes=10, in_channels=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 1024, num_classes))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET, encoding="utf-8")
    return tmp_path


def weights(channels: int) -> dict[str, torch.Tensor]:
    net = nn.Sequential(nn.Flatten(), nn.Linear(channels * 1024, 10))
    return {f"module.{name}": value for name, value in net.state_dict().items()}


def test_normalisation_on_the_command_line_changes_the_answer(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(weights(3), place / "weights.pt")
    args = ["evaluate", "weights.pt", "--model", "net.py:build", "--data", "digits", "--limit",
            "40", "--suite", "clean,noise-linf", "--json"]  # fmt: skip
    said = []
    for more in ([], ["--mean", "0.9,0.1,0.5", "--std", "0.2"]):
        assert run_cli([*args, *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] != said[1]
    assert run_cli([*args, "--mean", "red"]) == 2
    assert "--mean must be one number or one per channel" in capsys.readouterr().err


def test_a_name_is_evaluated_with_a_warning(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["evaluate", "resnet_tiny", "--data", "digits", "--limit", "8", "--suite"]
    assert run_cli([*args, "clean,noise-linf"]) == 0
    assert "is not trained" in capsys.readouterr().out


def test_finetune_goes_on_from_an_exported_folder_and_from_a_function(place: Path) -> None:
    from safetensors.torch import save_file

    model = bt.create_model("resnet_tiny", num_classes=10, seed=0)
    (place / "out").mkdir()
    save_file(model.state_dict(), place / "out" / "model.safetensors")
    card = '{"model": "resnet_tiny", "num_classes": 10, "image_size": 32}'
    (place / "out" / "buttress.json").write_text(card, encoding="utf-8")
    changes = ("epochs=1", "validation.limit=16")
    for source, loaded in (("out", model), ("net.py:build", None)):
        run = bt.finetune(source, "digits", "quickstart-standard", place / f"run-{source[:3]}",
                          limit=32, overrides=changes, device="cpu")  # fmt: skip
        assert run.state == "done"
        assert run.header["finetuned_from"]["initialized"] == []
        assert loaded is None or run.spec.model == "resnet_tiny"


def test_no_absolute_path_in_records_exports_and_pages(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the user names in them."""
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    run, made = str(place / "run"), [str(place / "exported"), str(place / "pages")]
    for args in (
        ["train", "--model", f"{place}/net.py:build", "--data", "digits", "--recipe",
         "quickstart-standard", "--set", "epochs=1", "--limit", "16", "--out", run],
        ["evaluate", run, "--suite", "clean,noise-linf", "--limit", "8"],
        ["export", run, "--to", made[0]],
        ["report", run, "--out", made[1]],
    ):  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["buttress", *args])
        assert run_cli(args) == 0
    header = Run(run).header
    assert header["command"].startswith("buttress train --model .../net.py:build --data digits")
    files = [p for p in place.rglob("*") if p.is_file() and p.suffix != ".pt"]
    assert {p.suffix for p in files} >= {".parquet", ".html", ".md", ".safetensors"}
    named = [p.relative_to(place) for p in files if str(place).encode() in p.read_bytes()]
    assert named == []
    assert header["spec"]["model"] == "model/net.py:build"


def test_paths_are_kept_if_asked_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"--out={place}/run folder:/home/me/data https://example.org/a/b 8/255"
    assert shorten_paths(text) == "--out=run folder:.../data https://example.org/a/b 8/255"
    monkeypatch.setenv("BUTTRESS_KEEP_PATHS", "1")
    assert shorten_paths(text) == text
