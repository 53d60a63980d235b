"""Every shipped study runs at its smallest scale, through the path of any scale, to its answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from buttress.cli.main import run_cli
from buttress.results.study_result import StudyResult, read_study_result, study_result_path
from buttress.studies import list_studies

# About 10 seconds each: no run, a penalty, analyses, narrow networks. The others take up to 40.
QUICK = ("bounds",)
OWN = ("quickstart",)  # is run by tests of its command


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all studies: a run that two of them have is trained once."""
    return tmp_path_factory.mktemp("studies")


def run_at_smoke(
    name: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[StudyResult, str]:
    """The answer, and the page with it, as the command leaves them."""
    how = ["--scale", "smoke", "--workers", "1", "--device", "cpu", "--out", str(root), "--json"]
    assert run_cli(["study", "run", name, *how]) == 0, capsys.readouterr().err
    page = Path(json.loads(capsys.readouterr().out)["report"])
    (about,) = (page.parent / "studies").glob("*.html")
    return read_study_result(study_result_path(root, name, "smoke")), about.read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in list_studies()
        if name not in OWN
    ],
)
def test_a_shipped_study_runs_to_its_answer(
    name: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, page = run_at_smoke(name, root, capsys)
    assert result.finished_runs == result.total_runs
    assert not result.failed_runs
    numbers = {
        (line.labels, column): number
        for line in result.rows
        for column, number in line.values.items()
    }
    assert numbers
    not_computed = "not computed at scale smoke"
    allowed = ("has no key", "other rows", "does not apply", "contains no run", not_computed)
    for place, number in numbers.items():
        if number.value is None:  # only what has no meaning for a model or is not computed
            assert any(reason in number.missing_reason for reason in allowed), (
                place,
                number.missing_reason,
            )
    for claim in result.claims:
        assert "not measured" not in claim.evidence, claim.id
        assert "no row" not in claim.evidence, claim.id
    for column in result.columns:
        values = [number for place, number in numbers.items() if place[1] == column]
        assert any(n.value is not None for n in values) or all(
            n.missing_reason == not_computed for n in values
        )
    assert all(f">{claim.id}<" in page and claim.outcome in page for claim in result.claims)
