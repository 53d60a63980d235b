"""Analyses that look at no run: how they are called, saved and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from buttress.analysis import (
    ANALYSES,
    analyze,
    analyze_group,
    analyze_standalone,
)
from buttress.cli.main import run_cli
from buttress.errors import UserError

SMALL: dict[str, dict[str, Any]] = {
    "rademacher": {"dimensions": [4, 16], "count": 8, "draws": 10},
    "size_bound": {"depths": [1, 2], "widths": [1, 2]},
    "transformer_bound": {"penalties": [0.003], "limit": 100, "steps": 80},
}
STANDALONE = [entry.name for entry in ANALYSES if ANALYSES.spec(entry.name).subject == "none"]


@pytest.mark.parametrize("name", STANDALONE)
def test_every_standalone_analysis_runs_saves_and_draws(name: str, tmp_path: Path) -> None:
    entry = ANALYSES.entry(name)
    result = analyze_standalone(name, tmp_path, args=SMALL[name])
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert ANALYSES.spec(entry.name).result.parse(written["result"], "file") == result
    assert written["summary"] == result.summary()
    assert (tmp_path / f"{name}.json").stat().st_size < 300_000
    assert (tmp_path / f"{name}.svg").stat().st_size > 2000
    ANALYSES.spec(entry.name).result.plot({"a": result, "b": result}, Figure())


def test_a_saved_result_is_used_again_if_it_answers_the_question(tmp_path: Path) -> None:
    args = dict(SMALL["rademacher"])
    analyze_standalone("rademacher", tmp_path, args=args)
    before = (tmp_path / "rademacher.json").stat().st_mtime_ns
    analyze_standalone("rademacher", tmp_path, args=args)
    assert (tmp_path / "rademacher.json").stat().st_mtime_ns == before
    analyze_standalone("rademacher", tmp_path, args={**args, "eps": 0.5})
    assert (tmp_path / "rademacher.json").stat().st_mtime_ns != before


def test_each_kind_of_analysis_is_asked_for_in_its_own_way(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="takes one run; call analyze"):
        analyze_standalone("sparsity", tmp_path)
    with pytest.raises(UserError, match="needs no run"):
        analyze("rademacher", tmp_path)
    with pytest.raises(UserError, match="unknown argument 'epsilon'"):
        analyze_standalone("rademacher", tmp_path, args={"epsilon": 1})
    with pytest.raises(UserError):
        analyze_group("rademacher", [], tmp_path)


def test_the_command_takes_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "dimensions=[4, 16]", "--set", "draws=10", "--out", str(tmp_path / "o")]
    picture = tmp_path / "all.png"
    assert run_cli(["analyse", "rademacher", *small, "--plot", str(picture)]) == 0
    assert "slope" in capsys.readouterr().out
    assert picture.is_file()
    assert (tmp_path / "o" / "rademacher.svg").is_file()
    assert run_cli(["analyse", "rademacher", *small, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rademacher"]["draws"] == 10
    assert run_cli(["analyse", "rademacher", str(tmp_path)]) == 2
    assert "takes no runs" in capsys.readouterr().err
    assert run_cli(["analyse", "sparsity"]) == 2
    assert "needs at least one run folder or model" in capsys.readouterr().err
