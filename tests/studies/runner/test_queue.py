"""Thousands of short runs: the queue and the Ray driver do little for each."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buttress.studies.runner import ray_cluster
from buttress.studies.runner.queue import RunQueue, TryResult
from buttress.studies.runner.run import RunnerOptions
from buttress.system.progress import SilentProgress

DONE, HELD = TryResult("done"), TryResult("held")


def fake_jobs(count: int, init_of: dict[int, int] | None = None) -> list[Any]:
    init_of = init_of or {}
    return [
        SimpleNamespace(
            key=f"run-{i}",
            folder=Path(f"run-{i}"),
            init_folder=Path(f"run-{init_of[i]}") if i in init_of else None,
        )
        for i in range(count)
    ]


def test_a_run_waits_for_the_weights_it_starts_from() -> None:
    queue = RunQueue(fake_jobs(3, {0: 2}))
    assert [queue.next_job(), queue.next_job(), queue.next_job()] == [1, 2, None]
    queue.record_result(2, DONE)
    assert queue.next_job() == 0


def test_a_locked_run_comes_back_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("buttress.studies.runner.queue.time.monotonic", lambda: now[0])
    queue = RunQueue(fake_jobs(2))
    first = queue.next_job()
    assert first == 0
    assert not queue.record_result(first, HELD)
    assert [queue.next_job(), queue.next_job()] == [1, None]
    now[0] = 10.0
    assert queue.next_job() == 0


def test_ten_thousand_runs_that_wait_for_one_are_handed_out_without_search() -> None:
    queue = RunQueue(fake_jobs(10_000, dict.fromkeys(range(1, 10_000), 0)))
    assert queue.next_job() == 0
    assert queue.next_job() is None
    queue.record_result(0, DONE)
    handed_out = []
    while (index := queue.next_job()) is not None:
        handed_out.append(index)
        queue.record_result(index, DONE)
    assert handed_out == list(range(1, 10_000))
    assert not queue.unfinished


class FakeRay:
    """A cluster of 200 CPUs whose tasks end at once; it counts what the driver asks."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self) -> None:
        self.calls = {"wait": 0, "resources": 0, "task": 0}

    def cluster_resources(self) -> dict[str, float]:
        self.calls["resources"] += 1
        return {"CPU": 200.0}

    def remote(self, **_: Any) -> Any:
        def submit(*_: Any) -> int:
            self.calls["task"] += 1
            return self.calls["task"]

        return lambda _: SimpleNamespace(remote=submit)

    def wait(
        self, references: list[int], num_returns: int = 1, timeout: float = 0
    ) -> tuple[list[int], list[int]]:
        self.calls["wait"] += 1
        return references[:num_returns], references[num_returns:]

    def get(self, _: int) -> TryResult:
        return DONE

    def shutdown(self) -> None: ...


def test_the_ray_driver_asks_the_cluster_once_for_many_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = FakeRay()
    progress = SimpleNamespace(finish_job=lambda _, was_done: None, close=lambda: None)
    monkeypatch.setattr(ray_cluster, "connect", lambda *_: ray)
    monkeypatch.setattr(ray_cluster, "StudyProgress", lambda *_: progress)
    monkeypatch.setattr(ray_cluster, "with_absolute_paths", lambda job: job)

    failures = ray_cluster.run_on_ray(
        fake_jobs(4000), RunnerOptions(backend="ray"), SilentProgress()
    )
    assert failures == []
    assert ray.calls["task"] == 4000
    assert ray.calls["wait"] <= 2 * (4000 // 200) + 4
    assert ray.calls["resources"] <= 3
