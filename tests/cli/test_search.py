"""`buttress search` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from buttress.cli.main import run_cli

SEARCH = {
    "question": "Which of two small networks holds?",
    "grid": {
        "base": {"dataset": "digits", "train_limit": 32, "recipe": "quickstart-at",
                 "overrides": ["epochs=2", "validation.limit=16"]},
        "axes": {"model": {"vit": {"model": "vit_tiny"}, "wrn": {"model": "wrn_tiny"}}},
    },
    "halving": {"rungs": 2, "eta": 2},
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(SEARCH), encoding="utf-8")
    return str(path)


def test_a_search_of_ones_own(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["search", file, "--out", str(tmp_path / "results"), "--workers", "1"]
    assert run_cli([*args, "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_finished"]
    assert Path(found["file"]).is_file()
    assert Path(found["picture"]).is_file()
    assert run_cli([*args, "--device", "cpu"]) == 0
    said = capsys.readouterr()
    for words in ("Which of two", "rung 2", "best", "fully trained", "buttress evaluate"):
        assert words in said.out
    assert "rung 1 of 2" in said.err
    vit = next(t["parameters"] for t in found["candidates"] if t["model"] == "vit_tiny")
    wrn = next(t["parameters"] for t in found["candidates"] if t["model"] == "wrn_tiny")
    assert run_cli([*args, "--budget-params", str(min(vit, wrn)), "--json"]) == 0
    small = json.loads(capsys.readouterr().out)
    assert (small["in_budget"], small["grid_size"]) == (1, 2)
    assert small["file"] != found["file"]  # another budget is another search


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--budget-params", "10"], "none of the 2 models"),
        (["--budget-macs", "-1"], "greater than 0"),
        (["--budget-macs", "nan"], "greater than 0"),
        (["--scale", "huge"], "smoke, digits, mini, paper"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_written(
    file: str, args: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["search", file, "--out", str(tmp_path / "results"), *args]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_an_unknown_search_names_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["search", "wrn-dept"]) == 2
    assert "wrn-depth" in capsys.readouterr().err
