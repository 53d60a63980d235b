"""Interleaved repeats: what happens to a running tool when the benchmark is stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from buttress.bench.repeats import SubprocessJob, median_row, run_interleaved
from buttress.errors import RunError
from buttress.system.progress import SilentProgress


@dataclass(frozen=True)
class Square:
    value: int


def sleep(folder: Path) -> Square:
    (folder / "pid").write_text(str(os.getpid()))
    time.sleep(60)
    return Square(0)


def compute_square(value: int) -> Square:
    print("tools may print")
    if value < 0:
        raise ValueError("negative")
    if value == 0:
        os._exit(1)
    return Square(value**2)


def test_a_job_returns_its_result_or_says_why_not() -> None:
    job = SubprocessJob(compute_square, 3)
    assert [job.run(), job.run()] == 2 * [{"value": 9}]
    job.close()
    for value, message in ((-1, "ValueError: negative"), (0, "ended without a result")):
        job = SubprocessJob(compute_square, value)
        with pytest.raises(RunError, match=message):
            job.run()
        job.close()


def test_a_row_has_medians_and_the_largest_memory() -> None:
    results: list[dict[str, Any]] = [
        {"seconds": s, "peak_memory_mb": mb, "robust_images": (1, 2)}
        for s, mb in ((3.0, 90.0), (1.0, 5.0), (2.0, 4.0), (9.0, 4.0))
    ]
    row = median_row(Square(7), results, title="a case")
    assert (row["seconds"], row["peak_memory_mb"]) == (2.5, 90.0)
    assert (row["value"], row["title"], row["repeats"]) == (7, "a case", 4)
    assert row["robust_images"] == (1, 2)


def test_no_tool_outlives_a_benchmark_that_was_stopped(tmp_path: Path) -> None:
    def end() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    ender = threading.Thread(target=end)
    ender.start()
    with pytest.raises(KeyboardInterrupt):
        run_interleaved("a case", {"sleeper": SubprocessJob(sleep, tmp_path)}, 1, SilentProgress())
    ender.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
