"""Every command and every line of Python in the README runs as written, in small."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from buttress.cli.main import outcome

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^\.venv/bin/buttress (.+)$", README, flags=re.M)
SMALL = ["--set", "epochs=1", "--set", "batch_size=16", "--limit", "32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place like a fresh clone, with a folder of images as the README describes it."""
    place = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "examples", place / "examples")
    source = np.random.default_rng(0)
    for split, name, n in [(s, c, 20) for s in ("train", "val") for c in ("cat", "dog")]:
        (place / "PATH" / split / name).mkdir(parents=True)
        for i in range(n):
            pixels = source.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / "PATH" / split / name / f"{i}.png")
    return place


def test_every_command_runs_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert len(COMMANDS) >= 6
    for line in COMMANDS:
        args = shlex.split(line.replace("resnet_18", "resnet_tiny"))
        if args[0] in ("train", "finetune"):
            args += SMALL
        if args[0] == "evaluate":
            args += ["--limit", "16"]
        assert outcome(args) == 0, line
    assert (folder / "results" / "report" / "index.html").is_file()


def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.+?)```", README, flags=re.S)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "clean" in done.stdout


def test_the_files_it_shows_are_there() -> None:
    for path in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / path).exists(), path
    for target in re.findall(r"^make (\w+)$", README, flags=re.M):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()
