"""The load of a machine changes no number: records do not depend on a clock."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

import buttress as bt
from buttress.data import Dataset
from buttress.engine import fast_model
from buttress.results.attack_record import read_attack_record
from conftest import images

SUITE = """
name: clock
entries:
- {attack: clean}
- {attack: pgd, threat: "Linf:0.02", args: {steps: 5}}
- {attack: fab-t, threat: "Linf:0.02", args: {steps: 5}}
- {attack: square, threat: "L2:0.3", args: {queries: 400}}
"""


def records_with_clock(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Name -> columns and metadata of each record, made while clocks run at random speed."""
    folder.mkdir()
    (folder / "suite.yaml").write_text(SUITE)
    model = bt.create_model("resnet_tiny", num_classes=10, image_size=32, seed=0)
    x, _ = images(8, size=32)
    data = Dataset.from_arrays(x, model.eval()(x).argmax(1), classes=list("abcdefghij"))
    now, source = [0.0], random.Random(seed)

    def clock() -> float:
        now[0] += source.choice((1e-5, 1e-3, 0.1, 2.0)) * source.random()
        return now[0]

    with monkeypatch.context() as patch:
        patch.setattr(fast_model, "MIN_OPTIMIZED_PASSES", 0)  # the forms that could be timed
        patch.setattr(fast_model, "MIN_FORWARD_PASSES", 0)
        for name in ("perf_counter", "monotonic", "process_time"):
            patch.setattr(time, name, clock)
        bt.evaluate(model, data, folder / "suite.yaml", out=folder / "out")
    records = {}
    for path in sorted((folder / "out").rglob("*.parquet")):
        record = read_attack_record(path)
        columns = (record.predictions, record.correct, record.loss, record.perturbation_size)
        by_clock = ("seconds", "time", "peak_memory_mb")
        meta = {k: v for k, v in record.metadata.items() if k not in by_clock}
        records[path.name] = ([c.tobytes() for c in columns], meta)
    return records


def test_records_do_not_depend_on_a_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = records_with_clock(0, tmp_path / "first", monkeypatch)
    assert len(first) == 4
    assert any("frozen forward pass" in meta["model_optimizations"] for _, meta in first.values())
    assert records_with_clock(1, tmp_path / "second", monkeypatch) == first
