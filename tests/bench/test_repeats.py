"""Interleaved repeats: what happens to a running tool when the benchmark is stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from buttress.bench.repeats import SubprocessJob, run_interleaved
from buttress.system.progress import SilentProgress

TOOL = "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(60)"


def test_no_tool_outlives_a_benchmark_that_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeper.py").write_text(TOOL)
    monkeypatch.chdir(tmp_path)

    def end() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    ender = threading.Thread(target=end)
    ender.start()
    with pytest.raises(KeyboardInterrupt):
        run_interleaved("a case", {"sleeper": SubprocessJob("sleeper", {})}, 1, SilentProgress())
    ender.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
