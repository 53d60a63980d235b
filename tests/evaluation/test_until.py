"""The confidence stop: a random order, blocks that are kept, and a number that says what it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import buttress as bt
from buttress.errors import UserError
from buttress.evaluation import evaluate, evaluate_until, load_evaluation
from buttress.evaluation import subsets as stopping
from conftest import small_net

SUITE = ["clean", "noise:Linf:0.1"]


@pytest.fixture
def data() -> bt.Dataset:
    x = torch.rand(90, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return bt.Dataset.from_arrays(x, small_net()(x).argmax(1), classes=list("abcdefghij"))


def test_it_stops_when_the_interval_is_narrow(
    data: bt.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "BLOCK_IMAGES", 10)
    model, whole = small_net(), evaluate(small_net(), data, SUITE)
    found = evaluate_until(model, data, SUITE, 0.5, out=tmp_path)
    assert 20 <= len(found) < 90
    low, high = found.interval()
    assert high - low < 0.5
    assert "stopped early" in found.warnings[-1]
    ids = found.records["clean"].ids
    assert not np.array_equal(ids, data.ids.numpy()[: len(ids)]), "not the first images"
    rows = np.isin(data.ids.numpy(), ids)
    for name, record in found.records.items():
        assert np.array_equal(record.correct, whole.records[name].correct[rows])
    again = load_evaluation(tmp_path)
    assert again.worst_case == found.worst_case
    assert again.warnings[-1] == found.warnings[-1], "a reader of the files is told too"
    assert again.records["clean"].metadata["images_available"] == 90


def test_all_images_if_it_never_gets_narrow(
    data: bt.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "BLOCK_IMAGES", 40)
    found = evaluate_until(small_net(), data, SUITE, 0.001)
    assert np.array_equal(found.records["clean"].ids, data.ids.numpy())
    assert not any("stopped early" in w for w in found.warnings)


def test_finished_blocks_are_not_done_again(
    data: bt.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "BLOCK_IMAGES", 10)
    evaluate_until(small_net(), data, SUITE, 0.5, out=tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("block-*/*.parquet")}
    assert before
    evaluate_until(small_net(), data, SUITE, 0.4, out=tmp_path)
    assert all(p.stat().st_mtime_ns == time for p, time in before.items())


@pytest.mark.parametrize("width", [0.0, 1.0, -0.1])
def test_a_width_must_be_a_share(data: bt.Dataset, width: float) -> None:
    with pytest.raises(UserError, match="0 < interval_width < 1"):
        evaluate_until(small_net(), data, SUITE, width)
