"""A run that fails after its training: one word for it everywhere, until what failed is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from buttress.analysis.core import analyse
from buttress.progress import Silent
from buttress.records.run import Run
from buttress.running import run_all
from buttress.study import Work, answer
from buttress.study import work as work_module
from buttress.study.survey import look_at
from small_study import small_study, works

PICTURES = {"gallery": {"count": 2, "steps": 1}}
BOTH = {"seeds": [0], "analyses": ["sparsity", PICTURES]}
WITHOUT = {"seeds": [0], "analyses": [PICTURES]}
OTHER = {"seeds": [0], "analyses": [], "suites": ["quickstart", "robustwrn-pgd"]}


def run(jobs: list[Work], *, retry: bool = False) -> list[str]:
    found = run_all(jobs, workers=1, device="cpu", retry=retry, progress=Silent())
    return [failure.message for failure in found]


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Trained and evaluated, but its analysis ran out of memory."""
    (job,) = works(tmp_path, **BOTH)

    def out_of_memory(name: str, *given: Any, **named: Any) -> Any:
        if name == "sparsity":
            raise RuntimeError("out of memory")
        return analyse(name, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(work_module, "analyse", out_of_memory)
        (message,) = run([job])
    assert "out of memory" in message
    return job


def test_all_say_that_it_failed_until_a_retry_succeeds(failed: Work, tmp_path: Path) -> None:
    found, study = Run(failed.folder), small_study(**BOTH)
    assert found.is_trained
    assert (found.state, look_at(failed).state) == ("failed", "failed")
    said = answer(study, "smoke", tmp_path)
    assert (said.done, list(said.failed)) == (0, [failed.key])
    assert "out of memory" in said.failed[failed.key]
    (message,) = run([failed])  # said again, not tried again
    assert "out of memory" in message
    assert run([failed], retry=True) == []
    assert (found.state, look_at(failed).state) == ("done", "done")
    assert not (failed.folder / "error.json").exists()
    said = answer(study, "smoke", tmp_path)
    assert (said.done, said.failed) == (1, {})


def test_a_study_that_wants_other_things_of_the_run_has_them(failed: Work, tmp_path: Path) -> None:
    (without,), (other,) = works(tmp_path, **WITHOUT), works(tmp_path, **OTHER)
    assert look_at(without).state == "started"  # it was never tried for this study
    assert run([without]) == run([without], retry=True) == []
    assert run([other]) == []
    assert look_at(other).state == "done"
    assert Run(failed.folder).state == look_at(failed).state == "failed"  # still, for the first


def test_what_is_made_by_hand_ends_the_failure(failed: Work) -> None:
    analyse("gallery", failed.folder, args=PICTURES["gallery"])
    assert Run(failed.folder).state == "failed"
    analyse("sparsity", failed.folder)
    assert Run(failed.folder).state == look_at(failed).state == "done"
