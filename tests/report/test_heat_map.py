"""What runs were trained on against what they are attacked by, and the table of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from buttress.config import ComponentSpec
from buttress.report.heat_map import build_heat_map
from buttress.report.leaderboard import build_leaderboards, relation_to_training
from buttress.report.write import SILENT, read_report_content
from report_runs import make_run, make_spec, report_pages, words, write_flags

THREATS = {"l0": "L0:4", "linf": "Linf:0.125", "patch": "patch:3", "spatial": "spatial:30,2"}


def trained(folder: Path, threat: str | None, counts: dict[str, int], **args: Any) -> None:
    """A run trained on a threat model, with so many robust images of ten per entry."""
    name = "standard" if threat is None else "multi_norm" if args else "pgd_at"
    spec = make_spec(objective=name, seed=len(list(folder.parent.glob("*"))))
    objective = ComponentSpec(name=name, args=args)
    recipe = spec.recipe.model_copy(update={"threat": threat, "objective": objective})
    run = make_run(folder, spec.model_copy(update={"recipe": recipe}), {"clean": [1] * 10})
    for entry, count in counts.items():
        flags = [1] * count + [0] * (10 - count)
        write_flags(run, entry, flags, attack="pgd", threat=THREATS[entry], args={})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    trained(folder / "a", "Linf:0.125", {"linf": 7, "l0": 4, "patch": 3, "spatial": 2})
    trained(folder / "b", "Linf:0.125", {"linf": 5, "l0": 2, "patch": 3, "spatial": 2})
    trained(folder / "c", "patch:3", {"linf": 1, "l0": 3, "patch": 8, "spatial": 2})
    trained(folder / "d", None, {"linf": 0, "l0": 0, "patch": 1, "spatial": 3})
    several = ["Linf:0.125", "patch:3"]
    trained(
        folder / "e", "Linf:0.125", {"linf": 4, "l0": 3, "patch": 6, "spatial": 2}, threats=several
    )
    return folder


def test_rows_are_trainings_and_columns_threats(runs: Path) -> None:
    (board,) = build_leaderboards(read_report_content([runs], (), (), SILENT).data.runs)
    heat_map = build_heat_map(board)
    assert heat_map is not None
    assert heat_map.threats == tuple(THREATS.values())
    found = {row.training: row for row in heat_map.rows}
    assert list(found) == ["standard training", "L∞ 0.125", "L∞ 0.125 + patch 3", "patch 3"]
    linf = found["L∞ 0.125"]
    assert linf.num_runs == 2
    assert [cell.accuracy for cell in linf.cells] == pytest.approx([0.3, 0.6, 0.3, 0.2])
    assert (linf.cells[0].lowest, linf.cells[0].highest) == (0.2, 0.4)
    assert [cell.is_trained_on for cell in linf.cells] == [False, True, False, False]
    both = found["L∞ 0.125 + patch 3"]
    assert [cell.is_trained_on for cell in both.cells] == [False, True, True, False]
    assert linf.worst_case.accuracy == pytest.approx(0.2)


def test_pages_show_the_heat_map_and_the_table_of_threats(runs: Path, tmp_path: Path) -> None:
    pages = report_pages(runs, tmp_path / "out")
    index = words(pages["index.html"])
    assert "Trained on, attacked by" in index
    assert "patch 3 1 run 30.0 10.0 80.0 trained on 20.0 10.0" in index
    page = words(next(p for name, p in pages.items() if "patch" in words(p) and "models/" in name))
    assert "Robust accuracy per threat model" in page
    assert "a square of 3 x 3 pixels anywhere may change to anything" in page
    assert "UAR" not in page


def test_one_training_has_no_heat_map(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    trained(folder / "a", "Linf:0.125", {"linf": 7, "l0": 4})
    (board,) = build_leaderboards(read_report_content([folder], (), (), SILENT).data.runs)
    assert build_heat_map(board) is None


@pytest.mark.parametrize(
    ("threat", "trained_on", "relation"),
    [
        ("patch:5", ("Linf:0.125", "patch:5"), "trained on"),
        ("patch:3", ("patch:5",), "same kind, other size"),
        ("L2:1", ("L2:0.5",), "same norm, other eps"),
        ("L2:1", ("patch:5",), "not trained on"),
        ("L2:1", (), ""),
    ],
)
def test_relations(threat: str, trained_on: tuple[str, ...], relation: str) -> None:
    assert relation_to_training(threat, trained_on) == relation
