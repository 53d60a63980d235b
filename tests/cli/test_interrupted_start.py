"""A signal while modules are imported ends a command as one at any other time: one line, 130."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

START = """
import os, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Interrupt())
from buttress.cli.main import run
run(["doctor", {checkpoint!r}, "--model", "vit_tiny", "--data", "digits"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["click", "torch"])
def test_interrupted_while_it_imports(module: str, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "empty.pt").touch()  # a missing file is noticed before torch is imported
    code = START.format(module=module, number=int(number), checkpoint="empty.pt")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.strip() == "buttress: interrupted; run the same command again to resume"
    assert not done.stdout


def test_a_command_in_the_background_ignores_ctrl_c() -> None:
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + START.format(
        module="click", number=int(signal.SIGINT), checkpoint="missing.pt"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "missing.pt" in done.stderr


def test_a_deleted_working_directory_is_one_line(tmp_path: Path) -> None:
    """There even the import of torch ends the process."""
    code = (
        "import os\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\n"
        "from buttress.cli.main import run\nrun(['list', 'models'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr == "buttress: the current directory was deleted; change to another one\n"
