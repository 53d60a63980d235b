"""The table of objectives: each is more robust than standard training, as documented and again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import buttress as bt
from buttress.data import load_dataset
from buttress.training import OBJECTIVES

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("script", ROOT / "benchmarks" / "objectives.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documented() -> dict[str, list[float]]:
    lines = (ROOT / "docs" / "measured" / "objectives.md").read_text().splitlines()[2:]
    rows = [[cell.strip(" `%") for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: [float(cell) for cell in row[1:]] for row in rows}


def test_the_documented_table_has_every_objective_and_all_beat_standard_under_attack() -> None:
    table = documented()
    assert set(table) == set(OBJECTIVES.names())
    plain = table.pop("standard")
    for name, row in table.items():
        assert all(a > b for a, b in zip(row[1:], plain[1:], strict=True)), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in OBJECTIVES.names() if n != "standard"])
def test_an_objective_beats_standard_under_attacks_it_was_not_trained_with(
    name: str, tmp_path: Path
) -> None:
    made = script()
    data = load_dataset("digits", "test", limit=made.IMAGES)
    extra = made.write_extra(tmp_path)
    recipe = made.recipe(name, extra)
    run = bt.train("resnet_tiny", "digits", recipe, tmp_path / name, limit=400)
    found = bt.evaluate(bt.load_model(run.path), data, made.SUITE).accuracy
    standard = dict(zip(made.SUITE, documented()["standard"], strict=True))
    assert all(100 * found[a] > standard[a] + 5 for a in made.SUITE[1:]), found
