"""Values of a table from the records of runs."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from buttress.results.evaluation import Evaluation
from buttress.results.run import Run
from buttress.results.run_results import RunResults
from buttress.studies import expand_study, load_study, write_study_answer
from buttress.studies.measure import can_decide_claims, column_evaluation

KEPT = Path(__file__).parents[2] / "docs" / "results" / "runs"


def unpack(name: str, folder: Path) -> None:
    with tarfile.open(KEPT / f"{name}.tar.xz") as tar:
        tar.extractall(folder / "runs", filter="data")


def published_suite(folder: Path) -> Evaluation:
    run = Run(folder / "runs" / "mlp_mixer_mini-f0f1af045aca")
    return RunResults(run).evaluation("generalization-mini")


def test_queries_that_beat_a_weak_published_attack_are_a_warning(tmp_path: Path) -> None:
    unpack("mlp_mixer_mini-f0f1af045aca", tmp_path)
    evaluation = published_suite(tmp_path)
    assert not evaluation.is_trustworthy
    answer = write_study_answer(expand_study(load_study("table1"), "mini"), tmp_path)
    values = next(row.values for row in answer.rows if row.labels == ("MLP-Mixer",))
    doubt = "images that are robust to pgd-l1"
    warned = {name for name, v in values.items() if any(doubt in text for text in v.warnings)}
    assert warned == {"pgd_l1", "worst_case"}
    assert not any(value.is_untrustworthy for value in values.values())
    # The worst case is that of the published attacks, for all architectures alike.
    attacks = np.min([record.scores for record in evaluation.records.values()], axis=0)
    assert values["worst_case"].value == pytest.approx(attacks.mean())
    assert attacks.mean() > evaluation.worst_case


def test_doubt_about_another_attack_decides_nothing(tmp_path: Path) -> None:
    unpack("mlp_mixer_mini-f0f1af045aca", tmp_path)
    evaluation = published_suite(tmp_path)
    record = evaluation.records["pgd-l1"]
    other = replace(record, metadata={**record.metadata, "attack": "pgd"})
    changed = replace(evaluation, records={**evaluation.records, "pgd-l1": other})
    assert can_decide_claims(evaluation)
    assert not can_decide_claims(changed)
    assert can_decide_claims(column_evaluation(changed, "pgd-linf"))


def test_a_value_of_some_seeds_is_shown_and_decides_nothing(tmp_path: Path) -> None:
    unpack("vit_mini-5459f09b0cdf", tmp_path)  # one of its two seeds
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
