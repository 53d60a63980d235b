"""Each reproduced mistake has a test that guards against it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load_benchmark() -> Any:
    folder = str(ROOT / "benchmarks")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("reproductions")
    finally:
        sys.path.remove(folder)


CASES = {case.text: case for case in load_benchmark().REPRODUCTIONS}
NEED_NAMESPACES = ("7: the disk is full", "7: a lock of a living process")


def test_every_reproduction_names_a_test_that_exists() -> None:
    assert {text[0] for text in CASES} == set("1234567")
    for case in CASES.values():
        file, name = case.test.split("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text()


def test_the_table_has_every_reproduction() -> None:
    """With a wrong result of the earlier version and the right one of this."""
    lines = (ROOT / "docs" / "measured" / "reproductions.md").read_text().splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert [row[0] for row in rows] == [*CASES]
    for text, before, now, test in rows:
        assert not CASES[text].is_right(before), text
        assert CASES[text].is_right(now), text
        assert test == f"`tests/{CASES[text].test}`"


QUICK = ("4: killed while `run.json` is written", "7: a written file and its name")


@pytest.mark.parametrize(
    "text",
    [pytest.param(t, marks=() if t.startswith(QUICK) else pytest.mark.slow) for t in CASES],
)
def test_this_version_is_right(text: str) -> None:
    benchmark, case = load_benchmark(), CASES[text]
    if text.startswith(NEED_NAMESPACES) and not benchmark.commands.has_namespaces():
        pytest.skip("users may not make namespaces here")
    result = benchmark.result_of(case, ROOT)
    assert case.is_right(result), result
