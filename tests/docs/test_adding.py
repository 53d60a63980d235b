"""The page on adding things, followed to the letter in a clone: files, import lines, commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from doc_blocks import ROOT, read_blocks, shell_commands

PAGE = "docs/adding.md"
BLOCKS = read_blocks(PAGE)
LINES = re.findall(
    r"`(from (buttress[\w.]*) import \w+ as \w+)`", (ROOT / PAGE).read_text(encoding="utf-8")
)
COPIED = ("src", "tests", "docs", "pyproject.toml")
LEFT = shutil.ignore_patterns("__pycache__", "_build", "_generated", "examples", "measured")
# Several commands in one process; it ends with the first that fails.
RUN = """
import json, sys
from buttress.cli.main import run_cli
for args in json.load(sys.stdin):
    if code := run_cli(args):
        sys.exit(f"buttress {' '.join(args)} ended with {code}")
"""
SMALL = {
    "train": ["--limit", "32", "--set", "epochs=1", "--set", "validation.limit=8"],
    "evaluate": ["--limit", "8"],
    "study": ["--workers", "1"],
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with the files and the import lines of the page."""
    folder = tmp_path_factory.mktemp("clone")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=LEFT)
        else:
            shutil.copyfile(ROOT / name, folder / name)
    for block in BLOCKS:
        if block.file:
            assert f"`{block.file}`" in (ROOT / PAGE).read_text(encoding="utf-8")
            assert not (folder / block.file).exists(), f"{block.where}: {block.file} is there"
            (folder / block.file).write_text(block.text, encoding="utf-8")
    for line, package in LINES:
        with (folder / "src" / package.replace(".", "/") / "__init__.py").open("a") as file:
            file.write(f"{line}\n")
    shorten(folder)
    return folder


def shorten(folder: Path) -> None:
    """The study of the page on few images."""
    path = folder / "src/buttress/studies/studies/two.yaml"
    study = yaml.safe_load(path.read_text(encoding="utf-8"))
    study["grid"] |= {"test_limit": 8}
    study["grid"]["base"] |= {"train_limit": 16, "overrides": ["epochs=1", "validation.limit=8"]}
    path.write_text(yaml.safe_dump(study), encoding="utf-8")


def start(clone: Path, args: list[str], given: str = "") -> str:
    """What Python prints in the clone, with the package of the clone."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *args], cwd=clone, input=given, capture_output=True, text=True,
        env={**kept, "PYTHONPATH": str(clone / "src")}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{args[-20:]}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def test_every_block_is_a_file_or_a_command() -> None:
    assert {block.language for block in BLOCKS if block.file} == {"python", "yaml"}
    assert all(block.file or block.language == "" for block in BLOCKS)
    python = [block for block in BLOCKS if block.language == "python"]
    assert len(LINES) == len(python), "each file has its import line"


@pytest.mark.slow  # a minute; part of `make test-docs`
def test_what_the_page_adds_works_and_keeps_the_contracts(clone: Path) -> None:
    words = [c.words for b in BLOCKS if not b.file for c in shell_commands(b.text, clone)]
    assert {program for program, *_ in words} == {"buttress", "python"}
    commands = [[*args, *SMALL.get(args[0], [])] for program, *args in words if program != "python"]
    said = start(clone, ["-c", RUN], json.dumps(commands))
    assert "The model has" in said, "the analysis says its sentence"
    assert (clone / "results" / "studies" / "two-digits" / "report" / "index.html").is_file()
    (contracts,) = [args for program, *args in words if program == "python"]
    ended = start(clone, [*contracts, "-q", "-p", "no:cacheprovider"])
    assert int(re.findall(r"(\d+) passed", ended)[0]) > 100
