"""Evaluation: verdicts, worst case, resume, and what is said about suspicious models."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

import buttress as bt
from buttress.data import Dataset
from buttress.errors import UserError
from buttress.evaluation import accuracy_curve, load_evaluation, load_suite
from buttress.evaluation.suite import SuiteTarget, resolve_suite
from buttress.results.attack_record import read_attack_record, write_attack_record
from buttress.statistics import wilson_interval
from buttress.system.locks import current_holder
from buttress.system.progress import SilentProgress
from buttress.threats.norm_ball import NormBall
from conftest import Logged, images, small_net

SUITE = ["clean", "pgd:Linf:0.02", "pgd:L2:0.2", "pgd:L1:2"]


def labelled(model: nn.Module, n: int = 24) -> Dataset:
    """Images that the model gets right, but for every fourth."""
    x, _ = images(n)
    y = model(x.to(next(model.parameters()))).argmax(1)
    y[::4] = (y[::4] + 1) % 10
    return Dataset.from_arrays(x, y, classes=[str(k) for k in range(10)])


def test_numbers_follow_from_the_verdicts() -> None:
    model = small_net()
    data = labelled(model)
    found = bt.evaluate(model, data, SUITE)
    assert found.accuracy["clean"] == 0.75
    assert len(found) == 24
    for name, record in found.records.items():
        assert found.accuracy[name] == record.correct.mean()
        assert not (record.correct & ~found.correct["clean"]).any()
    joint = np.logical_and.reduce(list(found.correct.values()))
    assert found.worst_case == joint.mean()
    assert found.worst_case <= min(found.accuracy.values())
    assert found.warnings == ()
    linf = found.records["pgd:Linf:0.02"]
    assert (linf.perturbation_size <= 0.02 * (1 + 1e-5)).all()
    assert (linf.perturbation_size[~found.correct["clean"]] == 0).all()
    assert np.array_equal(linf.correct, linf.predictions == linf.labels)


@pytest.mark.parametrize("batch_size", [1, 7])
def test_batch_size_changes_no_verdict_and_nothing_is_touched(batch_size: int) -> None:
    model = small_net().double()
    data = labelled(model)
    before, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    whole = bt.evaluate(model, data, SUITE, batch_size=256)
    parts = bt.evaluate(model, data, SUITE, batch_size=batch_size)
    for name in whole.records:
        assert np.array_equal(whole.correct[name], parts.correct[name])
        assert np.allclose(
            whole.records[name].perturbation_size, parts.records[name].perturbation_size, atol=1e-7
        )
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not model.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), rng)


def test_finished_attacks_are_not_done_again(tmp_path: Path) -> None:
    model = small_net()
    data = labelled(model)
    first, second = Logged(), Logged()
    one = bt.evaluate(model, data, SUITE, out=tmp_path, progress=first)
    assert len(first.tasks) == 4
    files = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    (tmp_path / "pgd:L2:0.2.parquet").unlink()
    two = bt.evaluate(model, data, SUITE, out=tmp_path, progress=second)
    assert second.tasks == ["custom: pgd:L2:0.2"]
    assert two.accuracy == one.accuracy
    kept = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    assert [p.name for p in files if kept[p] != files[p]] == ["pgd:L2:0.2.parquet"]
    assert load_evaluation(tmp_path).accuracy == one.accuracy


def test_an_attack_of_another_suite_is_not_made_again(tmp_path: Path) -> None:
    model, log = small_net(), Logged()
    data = labelled(model)
    bt.evaluate(model, data, SUITE, out=tmp_path / "eval" / "first")
    suite = ["clean", "square:Linf:0.02", "pgd:L1:2", "pgd:L2:0.2", "apgd-ce:L2:0.2"]
    again = bt.evaluate(model, data, suite, out=tmp_path / "eval" / "second", progress=log)
    assert "custom: pgd:L2:0.2" not in log.tasks
    assert "pgd:L2:0.2: attacked already in suite custom; results are reused" in log.lines
    fresh = bt.evaluate(model, data, suite)
    for name, record in again.records.items():
        assert np.array_equal(record.correct, fresh.records[name].correct)
        assert np.array_equal(record.loss, fresh.records[name].loss)
        assert record.findings == fresh.records[name].findings
        # Checks depend on the suite: they are made again.
        checks = [r.metadata.get("cross_check") for r in (record, fresh.records[name])]
        assert checks[0] == checks[1]
    assert again.records["pgd:L2:0.2"].metadata["attacked_in_suite"] == "custom"


@pytest.mark.parametrize("change", ["weights", "seed", "data", "args", "mode", "damage", "run"])
def test_an_attack_of_another_suite_with_other_settings_is_made(
    tmp_path: Path, change: str
) -> None:
    model, log = small_net(), Logged()
    data = labelled(model)
    bt.evaluate(model, data, SUITE, out=tmp_path / "eval" / "first")
    name, suite = "pgd:L2:0.2", {"name": "other", "entries": list[Any](SUITE)}
    if change == "weights":
        with torch.no_grad():
            next(model.parameters()).mul_(1.01)
    if change == "data":
        data = data.select(range(20))
    if change == "args":
        entry = {"name": name, "attack": "pgd", "threat": "L2:0.2", "args": {"steps": 3}}
        suite["entries"] = ["clean", entry]
    if change == "mode":
        suite["mode"] = "worst_case"
    if change == "damage":
        (tmp_path / "eval" / "first" / f"{name}.parquet").write_bytes(b"no record")
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    bt.evaluate(model, data, str(tmp_path / "suite.yaml"), seed=int(change == "seed"),
                out=tmp_path / ("other" if change == "run" else "eval") / "second",
                progress=log)  # fmt: skip
    assert f"other: {name}" in log.tasks


def test_records_go_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = small_net()
    bt.evaluate(model, labelled(model), SUITE[:2], out=".")
    assert len(list(tmp_path.glob("*.parquet"))) == 2


@pytest.mark.parametrize("change", ["weights", "seed", "data", "args"])
def test_records_of_other_settings_are_not_used(tmp_path: Path, change: str) -> None:
    model = small_net()
    data, seed = labelled(model), 0
    suite: list[Any] = list(SUITE[:2])
    bt.evaluate(model, data, suite, out=tmp_path)
    if change == "weights":
        with torch.no_grad():
            next(model.parameters()).mul_(1.01)
    if change == "data":
        data = data.select(range(20))
    if change == "args":
        suite = [
            "clean",
            {"name": SUITE[1], "attack": "pgd", "threat": "Linf:0.02", "args": {"steps": 3}},
        ]
    said = Logged()
    again = bt.evaluate(model, data, suite, out=tmp_path, seed=1 if change == "seed" else seed,
                        progress=said)  # fmt: skip
    assert any("other settings" in line and change in line for line in said.lines)
    fresh = bt.evaluate(model, data, suite, seed=1 if change == "seed" else seed)
    assert again.accuracy == fresh.accuracy


@pytest.mark.parametrize("mark", [None, "skipped"])
def test_autoattack_with_skipped_queries_is_not_reused(tmp_path: Path, mark: str | None) -> None:
    model = small_net()
    data = labelled(model).select(range(4))
    args = {"steps": 2, "queries": 3}
    entry = {"name": "aa", "attack": "autoattack", "threat": "Linf:0.02", "args": args}
    suite: list[Any] = ["clean", entry]
    bt.evaluate(model, data, suite, out=tmp_path)
    again = Logged()
    bt.evaluate(model, data, suite, out=tmp_path, progress=again)
    assert not again.tasks
    record = read_attack_record(tmp_path / "aa.parquet")
    meta = {k: v for k, v in record.metadata.items() if k != "square_queries"}
    meta |= {} if mark is None else {"square_queries": mark}
    write_attack_record(tmp_path / "aa.parquet", replace(record, metadata=meta))
    bt.evaluate(model, data, suite, out=tmp_path, progress=again)
    assert any("other settings (square_queries)" in line for line in again.lines)
    assert again.tasks == ["custom: aa"]


def test_a_damaged_record_is_named_and_made_again(tmp_path: Path) -> None:
    model = small_net()
    data = labelled(model)
    one = bt.evaluate(model, data, SUITE[:2], out=tmp_path)
    path = tmp_path / f"{SUITE[1]}.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    said = Logged()
    two = bt.evaluate(model, data, SUITE[:2], out=tmp_path, progress=said)
    assert any(path.name in line and "again" in line for line in said.lines)
    assert two.accuracy == one.accuracy


def test_killed_inside_an_attack_the_finished_ones_stay(tmp_path: Path) -> None:
    model = small_net()
    data = labelled(model)

    class Killed(Exception):
        pass

    class Fragile(nn.Module):
        def __init__(self, calls: int) -> None:
            super().__init__()
            self.net, self.left = model, calls

        def state_dict(self, *args: object, **kwargs: object):  # type: ignore[no-untyped-def]
            return self.net.state_dict()

        def __deepcopy__(self, memo: object) -> nn.Module:
            raise TypeError("no copies: they would not count")

        def forward(self, x: Tensor) -> Tensor:
            self.left -= 1
            if self.left < 0:
                raise Killed
            return self.net(x)

    with pytest.raises(Killed):
        bt.evaluate(Fragile(60), data, SUITE, out=tmp_path)
    done = {p.stem for p in tmp_path.glob("*.parquet")}
    assert "clean" in done
    assert 0 < len(done) < 4
    said = Logged()
    bt.evaluate(model, data, SUITE, out=tmp_path, progress=said)
    assert {t.removeprefix("custom: ") for t in said.tasks} == set(SUITE) - done


class Probabilities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).softmax(1)


class Random(Probabilities):
    def forward(self, x: Tensor) -> Tensor:
        z = self.net(x)
        return z + 0.1 * torch.randn(z.shape)


class Masked(Probabilities):
    def forward(self, x: Tensor) -> Tensor:
        return self.net((x * 8).round().detach() / 8)


@pytest.mark.parametrize(
    ("model", "word"),
    [(Probabilities().eval(), "probabilities"), (Random().eval(), "randomized"),
     (Masked().eval(), "no gradient reaches the input"),
     (small_net().train(), "training mode")],
)  # fmt: skip
def test_suspicious_models_are_noticed_in_the_result(model: nn.Module, word: str) -> None:
    x, y = images(8)
    data = Dataset.from_arrays(x, y, classes=[str(k) for k in range(10)])
    found = bt.evaluate(model, data, ["clean", "pgd:Linf:0.02"])
    assert any(word in warning for warning in found.warnings)
    assert model.training == (word == "training mode")


def test_mistakes_are_explained(tiny_data: Dataset) -> None:
    model = small_net()
    with pytest.raises(UserError, match="10 classes, but the model returns 7"):
        bt.evaluate(small_net(7), tiny_data, SUITE)
    with pytest.raises(UserError, match=r"returns 11; if the last output rejects .*--adapt"):
        bt.evaluate(small_net(11), tiny_data, SUITE)
    with pytest.raises(UserError, match="did you mean 'pgd'"):
        bt.evaluate(model, tiny_data, ["pgdd-linf"])
    with pytest.raises(UserError, match="unknown suite or attack 'generalisation'"):
        bt.evaluate(model, tiny_data, "generalisation")
    with pytest.raises(UserError, match="two entries"):
        bt.evaluate(model, tiny_data, ["pgd-linf", "pgd-linf"])
    with pytest.raises(UserError, match=r"unknown key 'entries\.0\.stepz'"):
        bt.evaluate(model, tiny_data, [{"attack": "pgd", "threat": "L2", "stepz": 1}])  # type: ignore[list-item]
    with pytest.raises(UserError, match="must return logits"):
        bt.evaluate(nn.Identity(), tiny_data, SUITE)


def test_threats_without_eps_take_the_budget_of_the_data(tiny_data: Dataset) -> None:
    entries = resolve_suite(load_suite(["pgd-l2", "pgd:L1:3"]), SuiteTarget(tiny_data.budgets, 8))
    assert [e.threat for e in entries] == [None, NormBall("L2", 0.5), NormBall("L1", 3.0)]


def test_accuracy_falls_with_eps() -> None:
    model = small_net()
    data = labelled(model)
    curve = accuracy_curve(model, data, "pgd", "Linf", [0.05, 0.0, 0.01, 0.3], steps=5)
    assert curve.eps == (0.0, 0.01, 0.05, 0.3)
    assert curve.accuracy[0] == 0.75
    assert list(curve.accuracy) == sorted(curve.accuracy, reverse=True)
    assert curve.accuracy[-1] == 0.0
    assert curve.intervals[0] == wilson_interval(18, 24)
    assert [i.low for i in curve.intervals][-1] == 0.0
    assert (np.diff(curve.is_robust.astype(int), axis=0) <= 0).all()


def test_worst_case_only_leaves_broken_images_alone(tmp_path: Path) -> None:
    model = small_net()
    data = labelled(model)
    table = bt.evaluate(model, data, SUITE)
    spec = load_suite(SUITE).model_copy(update={"mode": "worst_case"})
    union = bt.evaluate(model, data, spec, out=tmp_path)
    assert np.array_equal(union.is_robust, table.is_robust)
    names = [n for n in union.records if n != "clean"]
    last = union.records[names[-1]]
    assert np.array_equal(last.correct, table.is_robust)  # what is left after all
    assert last.metadata["mode"] == "worst_case"
    assert table.accuracy["clean"] > last.accuracy > 0, "the case must have both kinds"
    assert last.metadata["forward_passes"] < table.records[names[-1]].metadata["forward_passes"]
    assert "mode" not in table.records[names[-1]].metadata


class RefusesNothing(nn.Module):
    """Like XCiT, it cannot pass an empty batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, x: Tensor) -> Tensor:
        assert len(x), "an empty batch"
        return cast(Tensor, self.net(x))


def test_an_attack_that_breaks_nothing_asks_for_no_empty_batch() -> None:
    model = RefusesNothing()
    found = bt.evaluate(model, labelled(model), ["clean", "pgd:Linf:1e-9"])
    assert found.accuracy["pgd:Linf:1e-9"] == 0.75


class NotFinite(nn.Module):
    """A model that returns a value that is not finite for every image that was changed."""

    def __init__(self, model: nn.Module, x: Tensor, value: float) -> None:
        super().__init__()
        self.model, self.value = model, value
        self.register_buffer("sums", x.double().flatten(1).sum(1))

    def forward(self, x: Tensor) -> Tensor:
        changed = ~torch.isin(x.double().flatten(1).sum(1), self.get_buffer("sums"))
        return self.model(x).masked_fill(changed[:, None], self.value)


@pytest.mark.parametrize("attack", ["pgd-linf", "fast-linf", "square-linf"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_not_finite_under_attack_count_as_fooled(
    attack: str, value: float
) -> None:
    model = small_net()
    data = labelled(model, 8)
    found = bt.evaluate(NotFinite(model, data.images, value), data, [attack])
    assert found.accuracy["clean"] == 0.75
    assert found.accuracy[attack] == found.worst_case == 0
    assert found.records[attack].metadata["nonfinite_outputs"] == 6
    assert not found.is_trustworthy
    finding = next(f for f in found.findings if f.check == "nonfinite_under_attack")
    assert finding.evidence["outputs"] == 6
    assert "count as fooled" in " ".join(found.warnings)


class Waiting(Exception):
    pass


class StopsAtLog(SilentProgress):
    def log(self, text: str) -> None:
        raise Waiting(text)


def test_a_second_evaluation_waits_for_the_first(tmp_path: Path) -> None:
    model = small_net()
    args = (model, labelled(model), ["clean"])
    lock, holder = tmp_path / "eval.lock", {**vars(current_holder()), "host": "elsewhere"}
    lock.write_text(json.dumps(holder))
    with pytest.raises(Waiting, match=r"eval is locked by process .* on elsewhere"):
        bt.evaluate(*args, out=tmp_path / "eval", progress=StopsAtLog())
    assert not (tmp_path / "eval").exists()
    lock.unlink()
    bt.evaluate(*args, out=tmp_path / "eval", progress=StopsAtLog())


def test_what_a_killed_evaluation_left_is_removed(tmp_path: Path) -> None:
    model = small_net()
    (tmp_path / ".clean.parquet.abc.part").write_text("half a record")
    bt.evaluate(model, labelled(model), ["clean"], out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["clean.parquet"]
