"""The study that is kept for the documentation: its answer is what its records say."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from buttress.results.study_result import read_study_result, study_result_path
from buttress.studies import expand_study, load_study, write_study_answer

DOCS = Path(__file__).parents[2] / "docs"
KEPT = DOCS / "examples" / "table1-mini"


def test_the_answer_follows_from_the_records(tmp_path: Path) -> None:
    shutil.copytree(KEPT / "runs", tmp_path / "runs")
    study = load_study(KEPT / "table1.yaml")  # as it was when these runs were made
    write_study_answer(expand_study(study, "mini"), tmp_path)
    kept = read_study_result(KEPT / "answer.json")
    assert read_study_result(study_result_path(tmp_path, "table1", "mini")) == kept
    assert kept.finished_runs >= 6


def test_it_is_small_and_knows_no_machine() -> None:
    files = [path for path in KEPT.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000
    for path in files:
        content = path.read_bytes()
        assert not any(word in content for word in (b"/tmp", b"/home", b"/root", b"/work")), path


def test_its_pages_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delitem(sys.modules, "examples", raising=False)
    import examples

    examples.write_sites(KEPT.parent, tmp_path)
    page = (tmp_path / "table1-mini" / "index.html").read_text(encoding="utf-8")
    assert "vgg_mini" in page
    assert (tmp_path / "table1-mini" / "studies" / "table1-mini.html").is_file()
