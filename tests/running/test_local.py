"""Several processes: the same results, failures kept apart, a killed worker survived."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from buttress.models.checkpoint import load_checkpoint, tree_digest
from buttress.progress import Silent
from buttress.records.run import Run
from buttress.running import run_all
from buttress.running.local import Pool
from buttress.study import StudySpec, Work, work_of

STUDY = {
    "name": "small", "question": "does it run?", "dataset": "digits", "limit": 64,
    "grid": {"model": ["vit_tiny"], "recipe": ["quickstart-standard"], "seed": [0, 1, 2]},
    "changes": ["epochs=1", "validation.limit=16"], "suites": ["quickstart"], "test_limit": 8,
    "analyses": ["sparsity"],
}  # fmt: skip


def works(root: Path, **changes: object) -> list[Work]:
    study = StudySpec.parse({**STUDY, **changes}, "test")
    return work_of(study, study.runs(), root)


def weights(work: Work) -> str:
    return tree_digest(load_checkpoint(Run(work.folder).checkpoint("last"))["model"])


def test_two_workers_give_what_one_gives_and_a_failure_stops_no_other(tmp_path: Path) -> None:
    one, two = works(tmp_path / "one"), works(tmp_path / "two")
    assert run_all(one, workers=1, device="cpu", progress=Silent()) == []
    Run(two[1].folder).path.mkdir(parents=True)
    (two[1].folder / "stranger.txt").write_text("not a run")
    failures = run_all(two, workers=2, device="cpu", progress=Silent())
    assert [f.work for f in failures] == [two[1]]
    assert "not a run" in failures[0].message
    for a, b in ((one[0], two[0]), (one[2], two[2])):
        assert weights(a) == weights(b)
        assert Run(b.folder).suites() == ["quickstart"]
        assert Run(b.folder).analyses() == ["sparsity"]


def test_a_killed_worker_costs_one_run_and_it_can_be_done_again(tmp_path: Path) -> None:
    jobs = works(tmp_path, changes=["epochs=40", "validation.limit=16"])
    pool = Pool(jobs, 2, "cpu", Silent())

    def kill() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not any(
            (w.folder / "train.jsonl").exists() for w in jobs
        ):
            time.sleep(0.01)
        os.kill(next(iter(pool.busy)), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    failures = pool.run()
    killer.join()
    assert len(failures) == 1
    assert "ended with code" in failures[0].message
    assert sum(Run(w.folder).state == "done" for w in jobs) == 2
    assert run_all(jobs, workers=1, device="cpu", progress=Silent()) == []
    assert all(Run(w.folder).state == "done" for w in jobs)


def test_a_wrong_name_is_found_before_the_first_run(tmp_path: Path) -> None:
    for change in (
        {"grid": {"model": ["vit_tiny", "vit_tinny"], "recipe": ["quickstart-at"]}},
        {"suites": ["quickstrat"]},
        {"analyses": ["sparsty"]},
        {"changes": ["epoch=1"]},
    ):
        with pytest.raises(ValueError, match="did you mean"):
            works(tmp_path, **change)
    assert not list(tmp_path.iterdir())
