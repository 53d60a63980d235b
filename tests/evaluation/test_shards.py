"""Shards of an evaluation are the evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import buttress as bt
from buttress.cli.main import run_cli
from buttress.data import Dataset
from buttress.errors import RunError, UserError
from buttress.evaluation import load_evaluation
from buttress.evaluation.subsets import ImageShard, merge_shards
from conftest import images, small_net

SUITE = ["clean", "pgd:Linf:0.02", "fast:L2:0.2"]


def data(n: int = 23) -> Dataset:
    x, _ = images(n)
    with torch.no_grad():
        y = small_net()(x).argmax(1)
    return Dataset.from_arrays(x, y, classes=[str(k) for k in range(10)])


def test_shards_give_the_verdicts_of_the_whole(tmp_path: Path) -> None:
    model, whole = small_net().double(), data()
    right = bt.evaluate(model, whole, SUITE)
    for number in (2, 3, 1):  # in any order
        assert merge_shards(tmp_path, 3, whole) is None
        part = ImageShard(number, 3)
        bt.evaluate(model, part.select(whole), SUITE, out=part.folder(tmp_path))
    found = merge_shards(tmp_path, 3, whole)
    assert found is not None
    for name in SUITE:
        assert np.array_equal(found.correct[name], right.correct[name])
        assert np.array_equal(found.records[name].ids, right.records[name].ids)
        assert found.records[name].metadata["forward_passes"] == pytest.approx(
            right.records[name].metadata["forward_passes"],
            rel=0.1,  # several runs of an image at once
        )
    again = bt.evaluate(model, whole, SUITE, out=tmp_path)  # the merged records stand for it
    assert again.records[SUITE[1]].metadata["shards"] == 3


def test_shards_of_different_weights_are_refused(tmp_path: Path) -> None:
    whole = data()
    for number, seed in ((1, 0), (2, 1)):
        part = ImageShard(number, 2)
        net = small_net(seed=seed)
        bt.evaluate(net, part.select(whole), ["clean"], out=part.folder(tmp_path))
    with pytest.raises(RunError, match="differ in weights"):
        merge_shards(tmp_path, 2, whole)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_a_wrong_shard_is_explained(text: str) -> None:
    with pytest.raises(UserError, match="2/4"):
        ImageShard.parse(text)


@pytest.mark.slow
def test_two_workers_give_the_verdicts_of_one(tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text(
        "import torch\nfrom torch import nn\n\n\ndef net(num_classes=10):\n"
        "    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes)).double()\n"
    )
    args = [f"{net}:net", "--data", "digits", "--limit", "21", "--suite", "clean,pgd:Linf:0.01"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert run_cli(["evaluate", *args, "--out", str(one)]) == 0
    assert run_cli(["evaluate", *args, "--out", str(two), "--workers", "2"]) == 0
    left, right = (load_evaluation(f / "custom-21") for f in (one, two))
    assert np.array_equal(left.is_robust, right.is_robust)
    assert right.records["clean"].metadata["shards"] == 2
    assert run_cli(["evaluate", *args, "--workers", "2"]) == 2  # nowhere to meet
