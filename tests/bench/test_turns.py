"""Races in turns: what happens to a racer when its race is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from buttress.bench.turns import Job, in_turns
from buttress.progress import Silent

RACER = "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(60)"


def test_no_racer_outlives_a_race_that_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeper.py").write_text(RACER)
    monkeypatch.chdir(tmp_path)

    def end() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    ender = threading.Thread(target=end)
    ender.start()
    with pytest.raises(KeyboardInterrupt):
        in_turns("a race", {"sleeper": Job("sleeper", {})}, 1, Silent())
    ender.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_racer_of_the_test_above_would_go_on(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(RACER)
    racer = subprocess.Popen([sys.executable, "-m", "sleeper"], cwd=tmp_path)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            racer.wait(0.5)
    finally:
        racer.kill()
        racer.wait()
