"""Short attacks and small evaluations do not wait for an optimized model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import buttress as bt
from buttress.attacks.core import create_attack
from buttress.data import Dataset
from buttress.engine import fast_model as fast_model_module
from buttress.engine.cost import attack_passes
from buttress.engine.fast_model import MIN_FORWARD_PASSES, MIN_OPTIMIZED_PASSES, FastModel
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.evaluation.subsets import ImageShard, evaluate_shard, merge_shards
from buttress.evaluation.suite import load_suite
from buttress.threats.norm_ball import NormBall
from conftest import images, small_net

SUITE = ["clean", "pgd:Linf:0.02"]


def data(n: int) -> Dataset:
    x, _ = images(n)
    with torch.no_grad():
        y = small_net()(x).argmax(1)
    return Dataset.from_arrays(x, y, classes=[str(k) for k in range(10)])


def optimizations(evaluation: Any) -> list[str]:
    return list(evaluation.records[SUITE[1]].metadata["model_optimizations"])


def test_a_model_is_optimized_from_a_number_of_passes_on() -> None:
    model, x = small_net(), images(8)[0]
    few = FastModel.select(model, x, images=10, passes=MIN_OPTIMIZED_PASSES / 10 - 1)
    assert few.module is model
    assert few.notes == (f"not optimized: {MIN_OPTIMIZED_PASSES - 10} passes were predicted, "
                         f"and it pays from {MIN_OPTIMIZED_PASSES} on",)  # fmt: skip
    many = FastModel.select(model, x, images=10, passes=MIN_OPTIMIZED_PASSES / 10)
    assert many.module is not model
    assert many.saturating_batch == few.saturating_batch


def test_a_form_without_gradients_is_built_from_a_number_of_passes_on() -> None:
    fast_model = FastModel.select(small_net(), images(8)[0], images=10)
    before = fast_model.module
    fast_model.optimize_forward(MIN_FORWARD_PASSES / 10 - 1)
    assert fast_model.module is before
    fast_model.optimize_forward(MIN_FORWARD_PASSES / 10)
    assert "frozen forward pass" in fast_model.notes


def test_rewrites_that_agree_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[nn.Module] = []
    compare = fast_model_module.OriginalOutputs.describe_mismatch

    def record(original: fast_model_module.OriginalOutputs, candidate: nn.Module) -> str:
        calls.append(candidate)
        return compare(original, candidate)

    monkeypatch.setattr(fast_model_module.OriginalOutputs, "describe_mismatch", record)
    model = bt.create_model("resnet_tiny", num_classes=10, image_size=32, seed=0).eval()
    fast_model = FastModel.select(model, images(8, size=32)[0])
    assert {"BatchNorm folded", "strided gradients", "channels last"} <= {*fast_model.notes}
    assert len(calls) == 1


def test_the_model_itself_needs_no_confirmation() -> None:
    model, (x, y), threat = small_net(), images(8), NormBall("Linf", 0.1)
    attack = create_attack("pgd", steps=3)
    plain = run_attack(attack, model, x, y, threat)
    few = AttackOptions(fast_model=FastModel.select(model, x, images=8, passes=1))
    result = run_attack(attack, model, x, y, threat, options=few)
    assert torch.equal(result.x_adv, plain.x_adv)
    assert torch.equal(result.counter.forward, plain.counter.forward)


def test_the_predicted_passes_of_an_evaluation_decide_its_form() -> None:
    passes = attack_passes(create_attack("pgd"), NormBall("Linf", 0.02), 10).macs() + 1
    enough = -(-MIN_OPTIMIZED_PASSES // int(passes))
    assert optimizations(bt.evaluate(small_net(), data(8), SUITE))[0].startswith("not optimized")
    assert "BatchNorm folded" in optimizations(bt.evaluate(small_net(), data(enough), SUITE))


def test_shards_use_the_form_of_the_whole(tmp_path: Path) -> None:
    whole = data(60)
    expected = bt.evaluate(small_net(), whole, SUITE)
    assert "BatchNorm folded" in optimizations(expected)
    for number in (1, 2, 3):
        shard = ImageShard(number, 3)
        part = evaluate_shard(shard, small_net(), whole, load_suite(SUITE), out=tmp_path)
        assert optimizations(part) == optimizations(expected)
    merged = merge_shards(tmp_path, 3, whole)
    assert merged is not None
    assert (merged.correct[SUITE[1]] == expected.correct[SUITE[1]]).all()
