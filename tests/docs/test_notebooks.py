"""The notebooks of the tutorials: kept without outputs, executed as in Jupyter, rendered."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from buttress.cli.commands import COMMANDS
from doc_blocks import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import notebooks

Cell = dict[str, Any]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


def read(path: Path) -> list[Cell]:
    cells: list[Cell] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def test_there_are_five_and_the_first_page_leads_to_each() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 5
    for path in NOTEBOOKS:
        assert f"](tutorials/{path.name})" in index
        assert f"\ntutorials/{path.stem}\n" in index


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_are_valid_and_kept_without_outputs(path: Path) -> None:
    nbformat.validate(nbformat.read(path, as_version=4))
    cells = read(path)
    assert re.match(r"# \S", notebooks.cell_source(cells[0])), "begins with its title"
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(codes) > 4
    assert [c for c in codes if c["outputs"] or c["execution_count"] is not None] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_commands_in_their_text_exist(path: Path) -> None:
    text = "\n".join(notebooks.cell_source(c) for c in read(path) if c["cell_type"] == "markdown")
    commands = re.findall(r"`buttress\s([a-z]+)", text)
    assert commands
    assert [command for command in commands if command not in COMMANDS] == []


def test_cells_share_names_and_show_what_they_print_display_and_draw() -> None:
    before, path = os.getcwd(), list(sys.path)
    cells = [
        "%%writefile made_here.py\nvalue = 7",
        "import made_here\nnumber = made_here.value\nprint('seven')\nnumber + 1",
        "class Rich:\n    def _repr_html_(self):\n        return '<b>rich</b>'\n\nRich()",
        "import matplotlib.pyplot as plt\nlines = plt.plot([number, 2])",
        "quiet = number",
    ]
    _, second, third, fourth, last = notebooks.execute_cells(cells, "made up")
    assert (second.printed, second.displayed) == ("seven\n", [{"text/plain": "8"}])
    assert third.displayed[0]["text/html"] == "<b>rich</b>"
    assert [*fourth.displayed[0]] == ["image/png"]
    assert last == ("", [])
    assert (os.getcwd(), sys.path) == (before, path)
    assert "made_here" not in sys.modules


def test_a_cell_that_raises_fails_the_build_with_its_number() -> None:
    with pytest.raises(notebooks.NotebookError, match=r"made up, code cell 2 raised(?s:.)*no_name"):
        notebooks.execute_cells(["1", "no_name"], "made up")


def test_outputs_are_kept_until_the_notebook_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[list[str]] = []

    def execute(codes: list[str], name: str) -> list[notebooks.CellOutput]:
        executed.append(codes)
        return [notebooks.CellOutput("printed", [{"text/plain": "2"}]) for _ in codes]

    monkeypatch.setattr(notebooks, "GENERATED", tmp_path)
    monkeypatch.setattr(notebooks, "execute_cells", execute)
    for source in ("1", "1", "2"):
        cells = [Cell(cell_type="code", source=[source])]
        found = notebooks.cached_outputs(Path("a.ipynb"), cells)
        assert found == [("printed", [{"text/plain": "2"}])]
    assert executed == [["1"], ["2"]]


def test_a_page_has_text_code_and_outputs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebooks, "GENERATED", tmp_path)
    cells = [
        Cell(cell_type="markdown", source=["# Title\n", "\n", "text"]),
        Cell(cell_type="code", source="f()"),
        Cell(cell_type="code", source="%%writefile a.yaml\na: 1"),
    ]
    shown = [{"text/plain": "2", "text/html": "<i>2</i>"}, {"image/png": "AAAA"}]
    outputs = [notebooks.CellOutput("one\n", shown), notebooks.CellOutput("Writing", [])]
    page = notebooks.render_notebook("made.ipynb", cells, outputs)
    order = ["# Title", "<made.ipynb>", "text", "{code-block} python\nf()", ":class: output\none",
             "<i>2</i>", "notebooks/made-1-1.png", "yaml\n:caption: a.yaml\na: 1"]  # fmt: skip
    assert [page.index(piece) for piece in order] == sorted(page.index(piece) for piece in order)
    assert "Writing" not in page
    assert (tmp_path / "made-1-1.png").read_bytes() == b"\0\0\0"
