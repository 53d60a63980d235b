"""Every shipped study runs at its smallest scale, through the path of any scale, to its answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from buttress.progress import Silent
from buttress.records.answer import Answer, read_answer, write_answer
from buttress.running import run_all
from buttress.study import answer, cells_of, complete_together, list_studies, load_study, work_of

QUICK = ("bounds", "corruptions", "l1-regularisation", "sparsity")
OWN = ("quickstart",)  # is run by tests of its command


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all studies: a run that two of them have is trained once."""
    return tmp_path_factory.mktemp("studies")


def run_at_smoke(name: str, root: Path) -> Answer:
    study = load_study(name)
    works = work_of(study.scaled("smoke"), cells_of(study, "smoke"), root)
    unique = list({work.key: work for work in works}.values())
    assert run_all(unique, workers=1, device="cpu", progress=Silent()) == []
    complete_together(study, "smoke", root)
    return read_answer(write_answer(root, answer(study, "smoke", root)))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in list_studies()
        if name not in OWN
    ],
)
def test_a_shipped_study_runs_to_its_answer(name: str, root: Path) -> None:
    found = run_at_smoke(name, root)
    assert found.done == found.runs
    assert not found.failed
    numbers = {
        (line.labels, column): number
        for line in found.lines
        for column, number in line.numbers.items()
    }
    assert numbers
    for place, number in numbers.items():
        if number.value is None:  # only what has no meaning for a network
            assert "it has no" in number.missing or "does not apply" in number.missing, place
    for claim in found.claims:
        assert "not measured" not in claim.evidence, claim.id
        assert "no row" not in claim.evidence, claim.id
    assert all(any(n.value is not None for p, n in numbers.items() if p[1] == c)
               for c in found.columns)  # fmt: skip
