"""Records are equal byte for byte, whatever else the machine computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = ("resnet_tiny", "vit_tiny", "wrn_tiny")
BURN = "while True: sum(range(10**6))"
EVALUATE = """
import sys
from pathlib import Path
import torch
import buttress as bt
from buttress.data import load_dataset
from buttress.evaluation import run_entry
from buttress.results import run

# How long it took and when are all that may differ; every clock that the code reads is real.
run.utc_timestamp = lambda: "2000-01-01T00:00:00+00:00"
cost = run_entry._cost_metadata
run_entry._cost_metadata = lambda job, passes, seconds: cost(job, passes, 0.0)
run_entry.peak_memory_mb = lambda: 0.0
data = load_dataset("digits", "test", limit=8)
square = {"name": "square", "attack": "square", "threat": "L2:0.3", "args": {"queries": 400}}
suite = ["clean", "fast:Linf:0.01", "fab-t:Linf:0.01", square]
for name in sys.argv[1:]:
    model = bt.create_model(name, num_classes=10, seed=0)
    bt.evaluate(model, data, suite, out=Path(name))
"""


def record_files(folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    subprocess.run([sys.executable, "-c", EVALUATE, *MODELS], check=True, cwd=folder)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.parquet")}


@pytest.mark.slow
def test_records_are_equal_while_others_burn_all_cores(tmp_path: Path) -> None:
    quiet = record_files(tmp_path / "quiet")
    burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(os.cpu_count() or 1)]
    try:
        busy = record_files(tmp_path / "busy")
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert len(quiet) == 4 * len(MODELS)
    assert [name for name in quiet if quiet[name] != busy.get(name)] == []
