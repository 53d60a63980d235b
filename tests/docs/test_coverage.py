"""The coverage page: names exist, every study and claim is there, gaps are few and explained."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from buttress.analysis import ANALYSES
from buttress.attacks import ATTACKS
from buttress.data import DATASETS
from buttress.models.core import is_known
from buttress.results.suite_spec import list_suites
from buttress.studies import list_studies, load_study
from buttress.training import OBJECTIVES, load_recipe
from doc_blocks import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import coverage_tables as page

OURS = {"quickstart": {"Q1"}, "unseen": {f"U{i}" for i in range(1, 7)}}  # studies of no paper
ROWS: list[dict[str, Any]] = [row for work in page.read() for row in work["rows"]]
CLAIMS = {claim.id for name in list_studies() for claim in load_study(name).claims}


def is_model(name: str) -> bool:
    return name.startswith("timm:") or is_known(name)


def is_recipe(name: str) -> bool:
    return bool(load_recipe(name).epochs)


EXISTS: dict[str, Callable[[str], bool]] = {
    "models": is_model,
    "datasets": DATASETS.names().__contains__,
    "recipes": is_recipe,
    "objectives": OBJECTIVES.names().__contains__,
    "attacks": ATTACKS.names().__contains__,
    "suites": list_suites().__contains__,
    "analyses": ANALYSES.names().__contains__,
    "studies": list_studies().__contains__,
    "claims": CLAIMS.__contains__,
    "pages": lambda name: (ROOT / "docs" / f"{name}.md").is_file(),
}


@pytest.mark.parametrize("kind", EXISTS)
def test_every_name_exists(kind: str) -> None:
    names = [name for row in ROWS for name in row.get(kind, ())]
    assert names
    assert [name for name in names if not EXISTS[kind](name)] == []


def test_every_study_and_claim_is_there() -> None:
    named = {kind: {n for row in ROWS for n in row.get(kind, ())} for kind in EXISTS}
    assert named["studies"] | set(OURS) == set(list_studies())
    assert named["claims"] | {c for claims in OURS.values() for c in claims} == CLAIMS


def test_a_claim_is_beside_its_study() -> None:
    for row in ROWS:
        own = {claim.id for name in row.get("studies", ()) for claim in load_study(name).claims}
        assert set(row.get("claims", ())) <= own, row["element"]


def test_rows_are_complete_and_few_do_not_work() -> None:
    known = {"kind", "element", "place", "state", "note", "reason", *EXISTS}
    for row in ROWS:
        assert set(row) <= known, row
        assert row["state"] in page.STATES
        assert ("reason" in row) == (row["state"] != "works"), row["element"]
        assert row["state"] == "missing" or set(row) & set(EXISTS), row["element"]
    assert sum(row["state"] != "works" for row in ROWS) < 5


def test_the_page_has_a_row_for_each_element() -> None:
    text = page.tables()
    assert all(f"| {row['element']} |" in text for row in ROWS)
    assert all(row["reason"] in text for row in ROWS if row["state"] != "works")
