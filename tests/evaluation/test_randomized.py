"""Randomized models are scored over draws, surrogates are part of a record's identity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import buttress as bt
from buttress.data import Dataset
from buttress.errors import UserError
from buttress.evaluation import evaluate_until
from buttress.evaluation.run_entry import entry_passes
from buttress.evaluation.subsets import merge_records
from buttress.evaluation.suite import SuiteTarget, resolve_suite
from buttress.results.attack_record import content_problem, read_attack_record
from buttress.results.evaluation import load_evaluation
from buttress.results.suite_spec import parse_suite
from conftest import images, small_net

COIN = 0.25  # chance that the coin model is wrong
PGD: list[Any] = [{"attack": "pgd", "threat": "Linf:0.01", "args": {"steps": 2}}]


class Quantize(nn.Module):
    """Seven steps of gray; its gradient is zero."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.round(7 * x) / 7


class Coin(nn.Module):
    """Correct on the first half of the images; on the others wrong with a chance of one fourth.

    The first pixel says which half an image is in, and does not change its class.
    """

    def forward(self, x: Tensor) -> Tensor:
        is_random = x[:, 0, 0, 0] > 0.5
        is_wrong = is_random & (torch.rand(len(x)) < COIN)
        first = torch.where(is_wrong, -1.0, 1.0) + 0 * x.flatten(1).sum(1)
        return torch.stack([first, -first], 1)


@pytest.fixture
def coins() -> Dataset:
    x = 0.2 + 0.2 * torch.rand(200, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    x[100:, 0, 0, 0] = 0.8
    return Dataset.from_arrays(x, torch.zeros(200).long(), classes=["a", "b"])


def test_a_randomized_model_is_scored_over_draws(coins: Dataset) -> None:
    found = bt.evaluate(Coin(), coins, ["clean"], draws=20)
    mean, record = found.estimate("clean"), found.records["clean"]
    assert mean.accuracy == pytest.approx(1 - COIN / 2, abs=0.02)
    assert mean.interval.low < 1 - COIN / 2 < mean.interval.high
    assert found.every_draw("clean").accuracy == pytest.approx(0.5, abs=0.01)  # 0.75 ** 20
    assert record.correct_draws is not None
    assert (record.correct_draws[:100] == 20).all()
    accuracies = record.metadata["draw_accuracies"]
    assert len(accuracies) == 20
    assert np.mean(accuracies) == pytest.approx(mean.accuracy)
    assert len(set(accuracies)) > 3  # no draw is that of another
    shown = found.to_dict()
    assert shown["draws"] == 20
    assert shown["attacks"]["clean"]["every_draw"]["accuracy"] == found.every_draw("clean").accuracy
    assert any("means over 20 draws" in warning for warning in found.warnings)
    assert found.per_class()["a"].accuracy["clean"].accuracy == pytest.approx(mean.accuracy)


def test_draws_are_chosen_by_what_was_measured(coins: Dataset) -> None:
    assert bt.evaluate(Coin(), coins, ["clean"]).draws == 20
    x, y = images(8)
    data = Dataset.from_arrays(x, y, classes=list("abcdefghij"))
    fixed = bt.evaluate(small_net(), data, ["clean"])
    assert fixed.draws == 1
    assert "draws" not in fixed.to_dict()
    assert fixed.records["clean"].correct_draws is None
    with pytest.raises(UserError, match="draws >= 1"):
        bt.evaluate(small_net(), data, ["clean"], draws=-1)


def test_draws_are_seeded_and_leave_the_global_generator_alone(coins: Dataset) -> None:
    state = torch.get_rng_state()
    one = bt.evaluate(Coin(), coins, ["clean"], draws=5, seed=1)
    torch.set_rng_state(state)
    torch.rand(7)
    again, other = (bt.evaluate(Coin(), coins, ["clean"], draws=5, seed=s) for s in (1, 2))
    draws = [e.records["clean"].metadata["draw_accuracies"] for e in (one, again, other)]
    assert draws[0] == draws[1] != draws[2]


def test_an_attack_runs_on_images_that_some_draw_gets_right(coins: Dataset) -> None:
    found = bt.evaluate(Coin(), coins, ["clean", *PGD], draws=8, eot_samples=2)
    record = found.records["pgd-linf"]
    assert record.definition.args == "eot_samples=2, steps=2"
    # An attack cannot change this model: what it finds is the chance that the model has anyway.
    assert record.accuracy == pytest.approx(1 - COIN / 2, abs=0.05)
    assert found.worst_case <= min(found.accuracy.values())
    assert found.is_robust.mean() == found.every_draw().accuracy
    entry = resolve_suite(parse_suite(PGD, ["pgd"]), SuiteTarget(coins.budgets, 8))[1]
    entry = entry._replace(args={**entry.args, "eot_samples": 2})
    declared = entry_passes(entry, 2, draws=8)
    assert record.metadata["backward_passes"] <= declared.backward
    assert record.metadata["forward_passes"] <= declared.forward


def test_records_keep_the_draws(coins: Dataset, tmp_path: Path) -> None:
    first = bt.evaluate(Coin(), coins, ["clean"], draws=6, out=tmp_path)
    read = load_evaluation(tmp_path)
    assert read.accuracy == first.accuracy
    assert read.estimate() == first.estimate()
    again = bt.evaluate(Coin(), coins, ["clean"], draws=3, out=tmp_path)  # another identity
    assert again.draws == load_evaluation(tmp_path).draws == 3
    record = read_attack_record(tmp_path / "clean.parquet")
    parts = [
        type(record)(
            record.name,
            **{
                f: getattr(record, f)[rows]
                for f in ("ids", "labels", "predictions", "correct", "loss", "perturbation_size",
                          "correct_draws")
            },
            metadata=record.metadata,
        )
        for rows in (slice(0, 120), slice(120, None))
    ]  # fmt: skip
    merged = merge_records("clean", parts, record.ids)
    assert merged.accuracy == record.accuracy
    assert merged.metadata["draw_accuracies"] == pytest.approx(record.metadata["draw_accuracies"])


def test_draws_that_cannot_be_are_refused() -> None:
    columns: dict[str, Any] = {
        "id": np.arange(2), "label": np.zeros(2, np.int64), "prediction": np.zeros(2, np.int64),
        "correct": np.array([True, False]), "loss": np.zeros(2, np.float32),
        "distance": np.zeros(2, np.float32), "correct_draws": np.array([4, 3]),
    }  # fmt: skip
    assert content_problem(columns, {"draws": 4}) is None
    assert "from 0 to 3" in str(content_problem(columns, {"draws": 3}))
    assert "every draw" in str(content_problem(columns, {"draws": 5}))
    del columns["correct_draws"]
    assert "need the column" in str(content_problem(columns, {"draws": 4}))
    assert content_problem(columns, {}) is None


@pytest.fixture
def quantized() -> tuple[nn.Module, Dataset]:
    model = nn.Sequential(Quantize(), small_net()).eval()
    x, _ = images(24)
    with torch.no_grad():
        return model, Dataset.from_arrays(x, model(x).argmax(1), classes=list("abcdefghij"))


def test_a_surrogate_shows_the_true_robustness(
    quantized: tuple[nn.Module, Dataset], tmp_path: Path
) -> None:
    model, data = quantized
    suite: list[Any] = [{"attack": "pgd", "threat": "Linf:0.1", "args": {"steps": 5}}]
    without = bt.evaluate(model, data, suite, out=tmp_path)
    assert without.accuracy["pgd-linf"] == 1.0
    assert not without.is_trustworthy
    adapted = bt.evaluate(model, data, suite, surrogate="identity", out=tmp_path)
    assert adapted.accuracy["pgd-linf"] < 0.5
    assert adapted.is_trustworthy
    assert adapted.records["pgd-linf"].definition.args == "steps=5, surrogate=identity"
    # It is part of the identity: neither record is taken for the other.
    assert bt.evaluate(model, data, suite, out=tmp_path).accuracy["pgd-linf"] == 1.0
    assert json.loads(json.dumps(dict(adapted.records["pgd-linf"].metadata)))


def test_a_surrogate_in_a_suite_and_in_blocks(quantized: tuple[nn.Module, Dataset]) -> None:
    model, data = quantized
    args = {"steps": 5, "surrogate": "0=identity"}
    suite: list[Any] = [{"attack": "pgd", "threat": "Linf:0.1", "args": args}]
    named = bt.evaluate(model, data, suite)
    assert named.records["pgd-linf"].definition.args == "steps=5, surrogate=0=identity"
    plain: list[Any] = [{"attack": "pgd", "threat": "Linf:0.1", "args": {"steps": 5}}]
    found = evaluate_until(model, data, plain, 0.5, surrogate="identity")
    assert (found.correct["pgd-linf"] == named.correct["pgd-linf"]).all()


def test_passes_are_averaged_in_every_attack_of_an_evaluation() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x + 0.5 * torch.randn_like(x))

    x, y = images(6)
    data = Dataset.from_arrays(x, y, classes=list("abcdefghij"))
    found = bt.evaluate(Noisy(), data, ["noise-linf"], eot_samples="auto")
    assert int(found.records["noise-linf"].metadata["args"]["eot_samples"]) > 1
