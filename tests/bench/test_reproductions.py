"""Each reproduced mistake has a test that guards against it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def load_benchmark() -> Any:
    path = ROOT / "benchmarks" / "reproductions.py"
    spec = importlib.util.spec_from_file_location("reproductions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_reproduction_names_a_test_that_exists() -> None:
    cases = load_benchmark().REPRODUCTIONS.values()
    assert {case.text[0] for case in cases} == set("1234567")
    for case in cases:
        file, name = case.test.split("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text()


def test_the_table_has_every_reproduction() -> None:
    table = (ROOT / "docs" / "measured" / "reproductions.md").read_text()
    for case in load_benchmark().REPRODUCTIONS.values():
        assert f"| {case.text} |" in table


def test_a_killed_training_can_be_finished() -> None:
    benchmark = load_benchmark()
    assert benchmark.result_of("4: first file", ROOT) == "exit code 0"
