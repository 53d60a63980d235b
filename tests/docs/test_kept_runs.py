"""The results that are kept for the documentation: every answer is what its records say."""

from __future__ import annotations

import tarfile
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from buttress.results.study_result import read_study_result, study_result_path
from buttress.studies import expand_study, load_study, write_study_answer
from buttress.studies.spec import Scale

DOCS = Path(__file__).parents[2] / "docs"
KEPT = DOCS / "results"
STUDIES = sorted(path.parent.name for path in KEPT.glob("studies/*/answer.json"))
MAX_BYTES = 16_000_000


@pytest.fixture
def kept_runs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    import kept_runs

    return kept_runs


@pytest.mark.parametrize("name", STUDIES)
def test_the_answer_follows_from_the_records(
    name: str, kept_runs: ModuleType, tmp_path: Path
) -> None:
    kept_runs.unpack_runs(KEPT, tmp_path / "runs")
    study, _, scale = name.rpartition("-")
    write_study_answer(expand_study(load_study(study), cast(Scale, scale)), tmp_path)
    kept = read_study_result(KEPT / "studies" / name / "answer.json")
    assert read_study_result(study_result_path(tmp_path, study, scale)) == kept
    assert kept.finished_runs > 0


def test_a_packed_run_comes_back_and_packs_to_the_same_bytes(
    kept_runs: ModuleType, tmp_path: Path
) -> None:
    kept_runs.unpack_runs(KEPT, tmp_path / "runs")
    archive = min((KEPT / "runs").glob("*.tar.xz"))
    run = tmp_path / "runs" / archive.name.removesuffix(".tar.xz")
    (run / "best.pt").write_bytes(b"weights are not kept")
    kept_runs.pack_run(run, tmp_path / "again.tar.xz")
    with tarfile.open(archive) as first, tarfile.open(tmp_path / "again.tar.xz") as again:
        assert first.getnames() == again.getnames()
    assert archive.read_bytes() == (tmp_path / "again.tar.xz").read_bytes()


def test_records_are_small_and_know_no_machine(kept_runs: ModuleType, tmp_path: Path) -> None:
    assert sum(path.stat().st_size for path in KEPT.rglob("*") if path.is_file()) < MAX_BYTES
    kept_runs.unpack_runs(KEPT, tmp_path)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not any(word in content for word in (b"/tmp", b"/home", b"/root", b"/work")), path


def test_pages_are_built(kept_runs: ModuleType, tmp_path: Path) -> None:
    kept_runs.write_site(KEPT, tmp_path / "site", tmp_path / "runs")
    for name in STUDIES:
        assert (tmp_path / "site" / "studies" / f"{name}.html").is_file()
    text = kept_runs.results_page(KEPT)
    assert text.count("\n## ") + text.startswith("## ") == len(STUDIES)


def test_the_figure_of_the_readme_is_that_of_the_kept_answer(kept_runs: ModuleType) -> None:
    from answer_figure import answer_hash

    picture = kept_runs.ANSWER_FIGURE.read_text(encoding="utf-8")
    assert answer_hash(KEPT / "studies" / kept_runs.ANSWER_STUDY / "answer.json") in picture


def test_the_findings_name_every_claim_once(kept_runs: ModuleType) -> None:
    text = kept_runs.findings(KEPT)
    result = read_study_result(KEPT / "studies" / kept_runs.ANSWER_STUDY / "answer.json")
    assert all(text.count(f"- {claim.id}: ") == 1 for claim in result.claims)
    assert f"{result.finished_runs} of {result.total_runs} runs are finished" in text
    # The page says that no evaluation is untrustworthy.
    assert not any(value.is_untrustworthy for row in result.rows for value in row.values.values())
