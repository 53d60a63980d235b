"""The page about statistics: its example prints what it says, and its commands run."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import buttress as bt
from buttress.cli.main import outcome
from report_runs import make_run, make_spec, write_flags

PAGE = (Path(__file__).parents[1] / "docs" / "statistics.md").read_text()


def test_the_worked_example_prints_what_the_page_shows() -> None:
    ((code, shown),) = re.findall(r"```python\n([^`]+)```\n\n```text\n(.+?)```", PAGE, flags=re.S)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "statistics.md", "exec"), {})
    assert said.getvalue() == shown


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs that the page names."""
    source = np.random.default_rng(0)
    for letter, model in (("a", "vit_tiny"), ("b", "resnet_tiny")):
        for seed in ("", 0, 1, 2):
            run = make_run(
                tmp_path / "runs" / f"{letter}{seed}", make_spec(model, seed=int(seed or 0))
            )
            write_flags(run, "clean", source.random(50) < 0.7, weights=f"{letter}{seed}")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("runs")
def test_its_commands_run() -> None:
    commands = re.findall(r"^buttress (compare .+)$", PAGE, flags=re.M)
    assert len(commands) == 3
    for line in commands:
        assert outcome(shlex.split(line)) == 0, line
    first = re.findall(r"```python\n([^`]+)```", PAGE)[0]
    exec(compile(first, "statistics.md", "exec"), {"bt": bt})
