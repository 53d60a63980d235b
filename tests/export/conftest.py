from __future__ import annotations

from pathlib import Path

import pytest
import torch

from buttress.results.run import Run
from exported_runs import finished_run

torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A finished run of a small network on digits, without any number yet."""
    return finished_run(tmp_path / "runs" / "r1")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where an export goes."""
    return tmp_path / "out"
