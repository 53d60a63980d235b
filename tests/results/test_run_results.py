"""The read model of evaluations and runs: each number and warning has one source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buttress.errors import CorruptFileError, RunError, UserError
from buttress.export.verified import read_verified_results
from buttress.results.core import AccuracyEstimate
from buttress.results.diagnosis import Diagnosis, Finding
from buttress.results.evaluation import load_evaluation
from buttress.results.run import Run
from buttress.results.run_results import RunResults
from buttress.statistics import mean_interval, wilson_interval
from buttress.system.progress import SilentProgress
from report_runs import make_run, make_spec, report_pages, words, write_flags
from verdicts import evaluation

CORRECT = {"clean": [1, 1, 1, 1, 0, 1], "pgd-linf": [1, 1, 0, 1, 0, 0]}
MASKED = Finding(check="zero_gradient", severity="untrustworthy", message="flat", remedy="look")


def diagnose(run: Run, weights: str) -> None:
    Diagnosis(threat="Linf:0.1", dataset="digits", split="test", images=9, seed=0, checks=(),
              weights_digest=weights, data_fingerprint="", findings=(MASKED,),
              ).save(run.analysis_file("doctor"))  # fmt: skip


def evaluated(tmp_path: Path, **changes: Any) -> Run:
    run = make_run(tmp_path / "runs" / "a", make_spec(), {"clean": CORRECT["clean"]})
    for name, flags in CORRECT.items():
        write_flags(run, name, flags, **changes)
    return run


@pytest.mark.parametrize("flags", [[1, 0, 1], [0, 0], [1], []])
def test_estimates_of_flags_have_wilson_intervals(flags: list[int]) -> None:
    estimate = AccuracyEstimate.from_scores(np.array(flags, dtype=bool))
    assert (estimate.correct, estimate.n) == (sum(flags), len(flags))
    assert estimate.interval == wilson_interval(sum(flags), len(flags))
    assert np.isnan(estimate.accuracy) if not flags else estimate.accuracy == np.mean(flags)


def test_estimates_of_fractions_have_intervals_of_means() -> None:
    scores = np.array([0.2, 0.9, 1.0])
    estimate = AccuracyEstimate.from_scores(scores)
    assert estimate.accuracy == pytest.approx(0.7)
    assert estimate.correct == pytest.approx(2.1)
    assert estimate.interval == mean_interval(scores)


def test_a_diagnosis_counts_wherever_results_are_read(tmp_path: Path) -> None:
    run = evaluated(tmp_path)
    assert RunResults(run).evaluation("quick").is_trustworthy
    diagnose(run, "other weights")
    assert RunResults(run).evaluation("quick").is_trustworthy
    diagnose(run, "abc")
    results = RunResults(run)
    strict, (usable,) = results.evaluation("quick"), results.evaluations
    verified = read_verified_results(results, "abc", SilentProgress())
    for result in (strict, usable, verified):
        assert "flat; look" in result.warnings
    assert not strict.is_trustworthy
    assert not usable.is_trustworthy
    assert results.evaluation("quick") is strict  # read once


def test_reports_and_exports_have_every_warning_of_an_evaluation(tmp_path: Path) -> None:
    """Numbers that were not finite, worst-case mode, and an early stop."""
    changes = {"mode": "worst_case", "images_available": 90, "interval_width": 0.05,
               "nonfinite_images": 2, "nonfinite_outputs": 3}  # fmt: skip
    run = evaluated(tmp_path, **changes)
    path = run.suite_folder("quick") / "pgd-linf.parquet"
    expected = ["not finite for 2 images", "were not finite for 3 images", "worst-case mode: each",
                "stopped early: evaluated 6 of 90 images"]  # fmt: skip
    results = RunResults(run)
    pages = report_pages(tmp_path / "runs", tmp_path / "out")
    texts = {
        "evaluate": " ".join(load_evaluation(path.parent).warnings),
        "export": " ".join(read_verified_results(results, "abc", SilentProgress()).warnings),
        "report": " ".join(map(words, pages.values())),
    }
    for where, text in texts.items():
        for phrase in expected:
            assert phrase in text, (where, phrase)


def test_records_that_do_not_fit_together(tmp_path: Path) -> None:
    run = evaluated(tmp_path, suite_entries=["clean", "pgd-linf", "apgd", "fgsm"])
    write_flags(run, "apgd", CORRECT["clean"], weights_digest="others")
    (run.suite_folder("quick") / "fgsm.parquet").write_bytes(b"half")
    with pytest.raises(CorruptFileError, match=r"fgsm\.parquet"):
        load_evaluation(run.suite_folder("quick"))
    (usable,) = RunResults(run, "a").evaluations
    assert list(usable.records) == ["clean", "pgd-linf"]
    assert usable.unreadable == {
        "fgsm": "a/eval/quick/fgsm.parquet is unreadable; evaluate again",
        "apgd": "a/eval/quick/apgd: not the same weights as clean",
    }
    with pytest.raises(UserError, match=r"incomplete \(missing: apgd, fgsm\)"):
        usable.check_complete("a")
    (run.suite_folder("quick") / "fgsm.parquet").unlink()
    with pytest.raises(RunError, match="mixes records of different weights"):
        load_evaluation(run.suite_folder("quick")).check_complete("a")


def test_records_for_tables_have_the_same_results(tmp_path: Path) -> None:
    run = evaluated(tmp_path)
    whole, (small,) = load_evaluation(run.suite_folder("quick")), RunResults(run).evaluations
    assert small.to_dict() == whole.to_dict()
    assert small.images_digest == whole.images_digest
    assert all(len(r.loss) == 0 for r in small.records.values())


def test_attacks_with_other_settings_have_other_definitions() -> None:
    def definition(**metadata: Any) -> Any:
        changed = {"attack": "pgd", "threat": "Linf:8/255", "args": {"steps": 5}, **metadata}
        return evaluation({"pgd": [1, 0]}, **changed).records["pgd"].definition

    assert definition() == definition(threat="linf:8/255", seed=4)
    for other in ({"threat": "Linf:4/255"}, {"args": {"steps": 6}}, {"attack": "apgd"}):
        assert definition(**other) != definition()
    assert definition().args == "steps=5"
