"""Values of a table from the records of runs."""

from __future__ import annotations

import tarfile
from pathlib import Path

from buttress.studies import expand_study, load_study, write_study_answer

KEPT = Path(__file__).parents[2] / "docs" / "results" / "runs"


def test_a_value_of_some_seeds_is_shown_and_decides_nothing(tmp_path: Path) -> None:
    with tarfile.open(KEPT / "vit_mini-5459f09b0cdf.tar.xz") as tar:  # one of its two seeds
        tar.extractall(tmp_path / "runs", filter="data")
    answer = write_study_answer(expand_study(load_study("table1"), "mini"), tmp_path)
    rows = {row.labels: row.values["worst_case"] for row in answer.rows}
    vit, other = rows["ViT",], rows["ResNet",]
    assert vit.value is not None
    assert vit.low is not None
    assert vit.low < vit.value
    assert (vit.seeds, vit.missing_reason) == (1, "")
    assert vit.warnings[0] == "only 1 of 2 seeds are finished"
    assert (other.value, other.missing_reason) == (None, "not run yet")
    assert {claim.outcome for claim in answer.claims} == {"undecided"}
