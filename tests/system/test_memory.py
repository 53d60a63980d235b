"""The peak memory of a process, and that trainings and evaluations record theirs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import buttress as bt
from buttress.report.method import format_memory
from buttress.results.evaluation import load_evaluation
from buttress.system.memory import peak_memory_mb


def test_the_peak_grows_with_what_is_allocated_and_stays() -> None:
    before = peak_memory_mb()
    assert 10 < before < 100_000
    values = np.ones(60 * 2**17)  # 60 MB
    grown = peak_memory_mb()
    del values
    assert peak_memory_mb() >= grown >= before


def test_trainings_and_evaluations_record_their_peak(tmp_path: Path) -> None:
    run = bt.train("resnet_tiny", "digits", "quickstart-at", out=tmp_path / "run", limit=64)
    model, data = bt.load_model(run.path), bt.load_dataset("digits", split="test", limit=8)
    bt.evaluate(model, data, suite=["clean", "pgd-linf"], out=tmp_path / "records")
    records = load_evaluation(tmp_path / "records").records.values()
    peaks = [run.summary["peak_memory_mb"], *(r.metadata["peak_memory_mb"] for r in records)]
    assert len(peaks) == 3
    assert all(100 < peak <= peak_memory_mb() for peak in peaks)


def test_reports_show_the_largest_peak() -> None:
    assert format_memory([None, 812.4, 1930.6]) == "1,931 MB"
    assert format_memory([None, 0]) == ""
