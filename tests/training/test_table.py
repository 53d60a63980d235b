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


def load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documented() -> dict[str, list[float]]:
    lines = (ROOT / "docs" / "measured" / "objectives.md").read_text().splitlines()[2:]
    rows = [[cell.strip(" `%") for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: [float(cell) for cell in row[1:]] for row in rows}


def test_all_measured_objectives_exist_and_beat_standard_under_attack() -> None:
    table = documented()
    plain = table.pop("standard")
    assert len(table) >= 10
    assert set(table) <= set(OBJECTIVES.names("adversarial"))
    for name, row in table.items():
        assert all(a > b for a, b in zip(row[1:], plain[1:], strict=True)), name


def test_the_page_lists_every_objective_measured_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    rows = load_module(ROOT / "docs" / "generate.py").measured_objectives().splitlines()[2:]
    assert {row.split("`")[1] for row in rows} == set(OBJECTIVES.names())


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES.names("adversarial"))
def test_an_objective_beats_standard_under_attacks_it_was_not_trained_with(
    name: str, tmp_path: Path
) -> None:
    script = load_module(ROOT / "benchmarks" / "objectives.py")
    data = load_dataset("digits", "test", limit=script.IMAGES)
    extra = script.write_extra_data(tmp_path)
    recipe = script.recipe(name, extra)
    run = bt.train("resnet_tiny", "digits", recipe, tmp_path / name, limit=400)
    accuracy = bt.evaluate(bt.load_model(run.path), data, script.SUITE).accuracy
    standard = dict(zip(script.SUITE, documented()["standard"], strict=True))
    assert all(100 * accuracy[a] > standard[a] + 5 for a in script.SUITE[1:]), accuracy
