"""Several processes: the same results, failures kept apart, killed workers and drivers survived."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from buttress.results.run import Run
from buttress.studies import RunJob
from buttress.studies.jobs import read_status, read_statuses
from buttress.studies.runner import run_jobs, select_shard
from buttress.studies.runner.local import WorkerPool
from buttress.studies.runner.queue import RunQueue, lock_path, try_run
from buttress.system.locks import FileLock
from buttress.system.progress import SilentProgress
from small_study import GRID, content, longer, trained_epochs, works


def run(jobs: list[RunJob], workers: int = 1, *, retry: bool = False) -> list[str]:
    result = run_jobs(jobs, workers=workers, device="cpu", retry=retry, progress=SilentProgress())
    return [failure.message for failure in result]


def until(is_true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_true()


@pytest.mark.slow
def test_two_workers_give_what_one_gives_and_a_failure_stops_no_other(tmp_path: Path) -> None:
    one, two = works(tmp_path / "one"), works(tmp_path / "two")
    assert run(one) == []
    two[1].folder.mkdir(parents=True)
    (two[1].folder / "stranger.txt").write_text("not a run")
    (message,) = run(two, 2)
    assert "not a run" in message
    for a, b in ((one[0], two[0]), (one[2], two[2])):
        assert content(a) == content(b)
    assert [f.state for f in read_statuses(two)] == ["done", "failed", "done"]
    assert run(two) == [message]  # said again, not tried again
    (two[1].folder / "stranger.txt").unlink()
    assert run(two) == [message]
    assert run(two, retry=True) == []
    assert content(one[1]) == content(two[1])
    assert [f.state for f in read_statuses(two)] == ["done"] * 3
    assert not list(tmp_path.rglob("*.lock*"))


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    jobs = works(tmp_path, seeds=[0, 1], **longer(30))
    pool = WorkerPool(RunQueue(jobs), 2, "cpu", SilentProgress())
    killed = []

    def kill() -> None:
        until(lambda: any((w.folder / "train.jsonl").exists() for w in jobs))
        worker = next(w for w in pool.workers if w.job_index is not None)
        killed.append(worker.process.pid)
        os.kill(worker.process.pid or 0, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert pool.run() == []
    killer.join()
    assert killed
    assert all(trained_epochs(w) == list(range(1, 31)) for w in jobs)
    assert not list(tmp_path.rglob("*.lock*"))


def test_a_run_that_kills_its_processes_is_given_up(tmp_path: Path) -> None:
    (job, *_) = jobs = works(tmp_path)
    bag = RunQueue(jobs)
    assert [bag.record_crash(0, "code -9") for _ in range(3)] == [False, False, True]
    assert "3 attempts" in bag.failed_jobs()[0].message
    assert read_status(job).state == "failed"
    assert "3 attempts" in try_run(job, device="cpu", progress=SilentProgress()).message
    assert read_status(RunQueue(jobs, retry=True).jobs[0]).state == "new"


CODE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from small_study import longer, works
from buttress.system.progress import SilentProgress
from buttress.studies.runner import run_jobs
if __name__ == "__main__":
    jobs = works(Path(sys.argv[1]), seeds=[0, 1], **longer(30))
    workers = int(sys.argv[3])
    print(run_jobs(jobs, workers=workers, device="cpu", progress=SilentProgress()))
"""


def driver(root: Path, workers: int = 1) -> subprocess.Popen[bytes]:
    script = root / "driver.py"
    script.write_text(CODE)
    command = [sys.executable, str(script), str(root), str(Path(__file__).parents[2]), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_a_killed_driver_leaves_locks_that_the_next_takes_over(tmp_path: Path) -> None:
    jobs = works(tmp_path, seeds=[0, 1], **longer(30))
    first = driver(tmp_path)
    until(lambda: any((w.folder / "train.jsonl").exists() for w in jobs))
    first.kill()
    first.communicate()
    assert list(tmp_path.rglob("*.lock"))
    assert run(jobs) == []
    assert all(trained_epochs(w) == list(range(1, 31)) for w in jobs)
    assert not list(tmp_path.rglob("*.lock"))


@pytest.mark.slow
def test_two_drivers_share_the_runs(tmp_path: Path) -> None:
    jobs = works(tmp_path, seeds=[0, 1], **longer(30))
    drivers = [driver(tmp_path), driver(tmp_path)]
    said = [d.communicate(timeout=300) for d in drivers]
    assert [out.strip() for out, _ in said] == [b"[]", b"[]"], said
    commands = [trained_epochs(w) for w in jobs]
    assert commands == [list(range(1, 31))] * 2
    assert not list(tmp_path.rglob("*.lock"))


def test_a_run_that_another_has_is_left_to_it(tmp_path: Path) -> None:
    job = works(tmp_path)[0]
    lock = FileLock(lock_path(job))
    assert lock.acquire()
    outcome = try_run(job, device="cpu", progress=SilentProgress())
    assert outcome.state == "held"
    assert str(os.getpid()) in outcome.message
    assert not job.folder.exists()
    threading.Timer(0.5, lock.release).start()
    assert run([job]) == []  # waits for it


STAGES = {
    "axes": {
        "stage": {
            "second": {"init_from": {"stage": "first"}, "overrides": ["optimizer.lr=0.0001"]},
            "first": {},
        }
    },
    "seeds": [0],
}


def test_a_run_waits_for_the_one_it_begins_with(tmp_path: Path) -> None:
    jobs = works(tmp_path, **STAGES)
    first, second = sorted(jobs, key=lambda w: w.init_folder is not None)
    assert try_run(second, device="cpu", progress=SilentProgress()).state == "waiting"
    assert run([second, first]) == []
    assert Run(second.folder).header["finetuned_from"]["key"] == first.key
    assert select_shard(jobs, 1, 2) == jobs
    assert select_shard(jobs, 2, 2) == []


def test_if_its_source_fails_a_run_fails_and_can_be_had_later(tmp_path: Path) -> None:
    first, second = sorted(works(tmp_path, **STAGES), key=lambda w: w.init_folder is not None)
    first.folder.mkdir(parents=True)
    (first.folder / "stranger.txt").touch()
    messages = run([first, second])
    assert len(messages) == 2
    assert first.key in messages[1]
    assert not second.folder.exists()


def test_shards_are_the_whole(tmp_path: Path) -> None:
    jobs = works(tmp_path, seeds=list(range(7)))
    parts = [select_shard(jobs, number, 3) for number in (1, 2, 3)]
    assert sorted(len(p) for p in parts) == [2, 2, 3]
    assert sorted(w.key for p in parts for w in p) == sorted(w.key for w in jobs)


def test_records_of_other_images_do_not_count(tmp_path: Path) -> None:
    jobs = works(tmp_path, seeds=[0])
    assert run(jobs) == []
    more = works(tmp_path, seeds=[0], test_limit=9)
    (result,) = read_statuses(more)
    assert [t.kind for t in result.missing] == ["attack"] * 4
    assert GRID["test_limit"] == 8
    assert run(more) == []
    assert read_statuses(more)[0].state == "done"
