"""A run that fails after its training: one word for it everywhere, until what failed is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from buttress.analysis.core import analyze
from buttress.results.run import Run
from buttress.studies import RunJob, answer_study, expand_study
from buttress.studies import jobs as work_module
from buttress.studies.jobs import read_status
from buttress.studies.runner import run_jobs
from buttress.system.progress import SilentProgress
from small_study import small_study, works

PICTURES = {"gallery": {"examples": 2, "steps": 1}}
BOTH = {"seeds": [0], "analyses": ["sparsity", PICTURES]}
WITHOUT = {"seeds": [0], "analyses": [PICTURES]}
OTHER = {"seeds": [0], "analyses": [], "suites": ["quickstart", "robustwrn-pgd"]}


def run(jobs: list[RunJob], *, retry: bool = False) -> list[str]:
    result = run_jobs(jobs, workers=1, device="cpu", retry=retry, progress=SilentProgress())
    return [failure.message for failure in result]


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunJob:
    """Trained and evaluated, but its analysis ran out of memory."""
    (job,) = works(tmp_path, **BOTH)

    def out_of_memory(name: str, *given: Any, **named: Any) -> Any:
        if name == "sparsity":
            raise RuntimeError("out of memory")
        return analyze(name, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(work_module, "analyze", out_of_memory)
        (message,) = run([job])
    assert "out of memory" in message
    return job


def test_all_say_that_it_failed_until_a_retry_succeeds(failed: RunJob, tmp_path: Path) -> None:
    result, study = Run(failed.folder), small_study(**BOTH)
    assert result.is_trained
    assert (result.state, read_status(failed).state) == ("failed", "failed")
    said = answer_study(expand_study(study, "smoke"), tmp_path)
    assert (said.finished_runs, list(said.failed_runs)) == (0, [failed.key])
    assert "out of memory" in said.failed_runs[failed.key]
    (message,) = run([failed])  # said again, not tried again
    assert "out of memory" in message
    assert run([failed], retry=True) == []
    assert (result.state, read_status(failed).state) == ("done", "done")
    assert not (failed.folder / "error.json").exists()
    said = answer_study(expand_study(study, "smoke"), tmp_path)
    assert (said.finished_runs, said.failed_runs) == (1, {})


def test_a_study_that_wants_other_things_of_the_run_has_them(
    failed: RunJob, tmp_path: Path
) -> None:
    (without,), (other,) = works(tmp_path, **WITHOUT), works(tmp_path, **OTHER)
    assert read_status(without).state == "started"  # it was never tried for this study
    assert run([without]) == run([without], retry=True) == []
    assert run([other]) == []
    assert read_status(other).state == "done"
    assert Run(failed.folder).state == read_status(failed).state == "failed"  # still, for the first


def test_what_is_made_by_hand_ends_the_failure(failed: RunJob) -> None:
    analyze("gallery", failed.folder, args=PICTURES["gallery"])
    assert Run(failed.folder).state == "failed"
    analyze("sparsity", failed.folder)
    assert Run(failed.folder).state == read_status(failed).state == "done"
