"""Commands that are stopped at a file operation end, run again, with the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crash_points import COMMANDS, points

TESTS = Path(__file__).resolve().parents[1]
SAMPLE = 1  # faults per command in the quick tests


def stop_commands(*args: str) -> list[dict[str, Any]]:
    """Results per command; one process for all, because the start of torch is most of the time."""
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, str(TESTS / "crash_points.py"), *args], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def check_results(results: list[dict[str, Any]]) -> None:
    for result in results:
        problems = [attempt for attempt in result["attempts"] if attempt["problem"]]
        assert not problems, (result["command"], problems)
        assert result["attempts"]


def test_a_sample_of_points_of_each_command() -> None:
    results = stop_commands("--sample", str(SAMPLE))
    assert [result["command"] for result in results] == list(COMMANDS)
    check_results(results)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_point(command: str) -> None:
    check_results(stop_commands(command))


def test_every_operation_is_a_point() -> None:
    operations = ["mkdir", "open", "write", "write", "fsync", "replace"]
    faults = [(fault.kind, fault.index) for fault in points(operations, None)]
    kills = [("kill", index) for index in (0, 1, 2, 4, 5)]
    assert faults == [*kills, ("half", 2), ("full", 0), ("full", 1), ("full", 2)]
    assert len(points(operations, 3)) == 3
