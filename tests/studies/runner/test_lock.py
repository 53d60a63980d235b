"""Locks: one holder at a time, whatever happens to the one before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from buttress.studies.runner import queue
from buttress.system.locks import (
    FileLock,
    LockLostError,
    current_holder,
    lock_folder,
    read_holder,
    remove_stale_lock,
    seconds_since_touched,
)
from buttress.system.progress import SilentProgress
from small_study import works


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "r.lock"), FileLock(tmp_path / "r.lock")
    assert first.acquire()
    assert not second.acquire()
    holder = read_holder(first.path)
    assert holder is not None
    assert holder.pid == os.getpid()
    first.release()
    assert not first.path.exists()
    assert second.acquire()
    first.release()  # again, too late: it is not its own any more
    assert second.path.exists()
    second.release()


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "r.lock"
    code = (
        "import sys, os, signal\nfrom pathlib import Path\n"
        "from buttress.system.locks import FileLock\n"
        "assert FileLock(Path(sys.argv[1])).acquire()\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.exists()
    lock = FileLock(path)
    assert lock.acquire()
    lock.release()


def test_a_stale_lock_is_cleared_and_a_live_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "r.lock"
    remove_stale_lock(path)
    held_elsewhere(path, 0)
    remove_stale_lock(path)
    assert path.exists()
    held_elsewhere(path, 1000)
    remove_stale_lock(path)
    assert not list(tmp_path.iterdir())


def held_elsewhere(path: Path, age: float) -> None:
    path.write_text(json.dumps({**vars(current_holder()), "host": "elsewhere", "token": "x"}))
    then = time.time() - age
    os.utime(path, (then, then))


def test_of_another_machine_only_the_age_counts(tmp_path: Path) -> None:
    path = tmp_path / "r.lock"
    held_elsewhere(path, 60)
    assert 59 < seconds_since_touched(path) < 70
    assert not FileLock(path, limit=100).acquire()
    lock = FileLock(path, limit=50)
    assert lock.acquire()
    lock.release()


def test_a_number_given_to_another_process_is_not_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "r.lock"
    path.write_text(json.dumps({**vars(current_holder()), "process_start": "1", "token": "x"}))
    lock = FileLock(path)
    assert lock.acquire()
    lock.release()


@pytest.mark.parametrize("other", ["boot_id", "pid_namespace"])
def test_in_a_container_with_the_same_host_name_only_the_age_counts(
    tmp_path: Path, other: str
) -> None:
    path = tmp_path / "r.lock"
    holder = {**vars(current_holder()), "pid": 2**22 + 1, other: "of a container", "token": "x"}
    path.write_text(json.dumps(holder))
    assert not FileLock(path).acquire()
    path.write_text(json.dumps({**holder, other: vars(current_holder())[other]}))
    lock = FileLock(path)
    assert lock.acquire()
    lock.release()


def test_a_thread_may_lock_a_folder_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with lock_folder(folder, SilentProgress()) as progress, lock_folder(folder, progress) as same:
        assert same is progress
        assert [p.name for p in tmp_path.iterdir()] == ["run.lock"]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_only_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with lock_folder(tmp_path / "run", SilentProgress()):
        assert [p.name for p in tmp_path.rglob("*")] == ["run"]


def test_where_the_parent_is_read_only_the_lock_is_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path == tmp_path / "run")
    with lock_folder(tmp_path / "run", SilentProgress()):
        assert [p.name for p in (tmp_path / "run").iterdir()] == [".lock"]


def test_a_lock_that_is_being_written_is_held(tmp_path: Path) -> None:
    path = tmp_path / "r.lock"
    path.touch()
    assert not FileLock(path).acquire()


def test_many_take_over_at_once_and_one_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "r.lock"
    for _ in range(10):
        held_elsewhere(path, 1000)
        locks = [FileLock(path) for _ in range(8)]
        start = threading.Barrier(len(locks))
        got: list[FileLock] = []

        def grab(
            lock: FileLock, start: threading.Barrier = start, got: list[FileLock] = got
        ) -> None:
            start.wait()
            if lock.acquire():
                got.append(lock)

        threads = [threading.Thread(target=grab, args=(lock,)) for lock in locks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 1
        got[0].release()
        assert not list(tmp_path.iterdir())


def test_the_holder_touches_it_and_notices_that_it_was_taken(tmp_path: Path) -> None:
    path = tmp_path / "r.lock"
    lock = FileLock(path, beat=0.02)
    assert lock.acquire()
    os.utime(path, (0, 0))
    deadline = time.monotonic() + 20
    while seconds_since_touched(path) > 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seconds_since_touched(path) < 100
    lock.check()
    held_elsewhere(path, 0)
    while not lock.is_lost and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(LockLostError, match="elsewhere"):
        lock.check()
    lock.release()
    assert path.exists()


def test_a_finished_run_keeps_no_lock_of_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed after the last record, before it gave the lock of the evaluation back."""
    (job, *_) = works(tmp_path)
    folder = job.folder / "eval"
    folder.mkdir(parents=True)
    stale = (queue.lock_path(job), folder / "quickstart.lock")
    for path in stale:
        held_elsewhere(path, 1000)
    held_elsewhere(folder / "other.lock", 0)
    monkeypatch.setattr(queue, "_earlier_result", lambda job: queue.TryResult("done"))
    assert queue.try_run(job, device="cpu", progress=SilentProgress()).state == "done"
    assert not any(path.exists() for path in stale)
    assert (folder / "other.lock").exists()
