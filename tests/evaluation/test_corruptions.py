"""Corruptions in a suite: all images are scored, and the worst case is still per image."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import buttress as bt
from buttress.cli.main import run_cli
from buttress.data import Dataset
from buttress.data.corruptions import corrupt_dataset
from buttress.engine.fast_model import FastModel
from buttress.evaluation import evaluate_until, load_evaluation
from buttress.evaluation import subsets as stopping
from buttress.evaluation.subsets import ImageShard, merge_shards
from buttress.evaluation.suite import load_suite
from buttress.statistics import wilson_interval
from conftest import Linear, Logged, images

SUITE = ["clean", "corruption:fog:3", "corruption:contrast", "pgd:Linf:0.01"]
NAMES = ["clean", "fog-3", *(f"contrast-{s}" for s in range(1, 6)), "pgd:Linf:0.01"]


@pytest.fixture
def data() -> Dataset:
    """Some images are wrong clean; some of those are right in fog."""
    x, _ = images(48)
    data = Dataset.from_arrays(x, torch.zeros(48, dtype=torch.int64), classes=list("abcdefghij"))
    model = Linear(192, 10)
    clean, foggy = (model(d.images).argmax(1) for d in (data, corrupt_dataset(data, "fog", 3)))
    labels = clean.clone()
    moved = (foggy != clean).nonzero()[:, 0][::2]
    assert len(moved) > 3, "the case must have images that fog moves"
    labels[moved] = foggy[moved]
    labels[1::8] = (clean[1::8] + 1) % 10
    return Dataset.from_arrays(data.images, labels, classes=list("abcdefghij"))


def test_all_images_are_scored_and_the_worst_case_is_per_image(data: Dataset) -> None:
    model, labels = Linear(192, 10), data.labels.numpy()
    found = bt.evaluate(model, data, SUITE)
    assert list(found.records) == NAMES
    fog = found.records["fog-3"]
    right = model(corrupt_dataset(data, "fog", 3).images).argmax(1).numpy() == labels
    assert np.array_equal(fog.correct, right)
    assert fog.accuracy == right.mean()
    gained = fog.correct & ~found.correct["clean"]
    assert gained.any(), "wrong clean and right in fog counts for the corruption ..."
    assert not found.is_robust[gained].any(), "... and not for the worst case"
    flags = [r.predictions == labels for r in found.records.values()]
    assert found.worst_case == np.logical_and.reduce(flags).mean()
    assert 0 < found.worst_case < found.accuracy["pgd:Linf:0.01"]


def test_the_summary_is_a_mean_of_means(data: Dataset) -> None:
    found = bt.evaluate(Linear(192, 10), data, SUITE)
    summary = found.corruptions
    assert summary is not None
    contrast = np.mean([found.accuracy[f"contrast-{s}"] for s in range(1, 6)])
    assert summary.accuracy == pytest.approx((found.accuracy["fog-3"] + contrast) / 2)
    assert summary.mce == pytest.approx(1 - summary.accuracy)
    assert summary.estimate.interval.low < summary.accuracy < summary.estimate.interval.high
    said = found.to_dict()
    assert set(said["attacks"]) == {"clean", "pgd:Linf:0.01"}
    rows = said["corruptions"]["by_corruption"]["contrast"]
    assert rows["interval"].low < rows["accuracy"] < rows["interval"].high
    fog = round(48 * found.accuracy["fog-3"])
    row = said["corruptions"]["by_corruption"]["fog"]
    assert row["intervals"][3] == pytest.approx(wilson_interval(fog, 48))
    assert said["corruptions"]["by_corruption"]["contrast"]["accuracy"] == pytest.approx(contrast)
    assert list(said["corruptions"]["by_corruption"]["contrast"]["by_severity"]) == [1, 2, 3, 4, 5]
    assert bt.evaluate(Linear(192, 10), data, ["pgd:Linf:0.01"]).corruptions is None


def test_a_suite_may_leave_corruptions_out_of_its_worst_case(data: Dataset, tmp_path: Path) -> None:
    model, said = Linear(192, 10), Logged()
    counted = bt.evaluate(model, data, SUITE, out=tmp_path)
    spec = load_suite(SUITE).model_copy(update={"corruptions_in_worst_case": False})
    aside = bt.evaluate(model, data, spec, out=tmp_path, progress=said)
    assert aside.worst_case == aside.accuracy["pgd:Linf:0.01"] > counted.worst_case
    assert len(said.tasks) == 6, "their records say so, and are made again"
    assert load_evaluation(tmp_path).worst_case == aside.worst_case
    assert aside.corruptions is not None
    assert not aside.corruptions.in_worst_case
    assert aside.corruptions.accuracy == counted.corruptions.accuracy  # type: ignore[union-attr]


def test_what_is_done_is_not_done_again(data: Dataset, tmp_path: Path) -> None:
    model, said = Linear(192, 10), Logged()
    one = bt.evaluate(model, data, SUITE, out=tmp_path)
    assert {p.stem for p in tmp_path.iterdir()} == set(NAMES)
    (tmp_path / "contrast-2.parquet").unlink()
    two = bt.evaluate(model, data, SUITE, out=tmp_path, progress=said)
    assert said.tasks == ["custom: contrast-2"]
    assert two.accuracy == one.accuracy
    assert load_evaluation(tmp_path).to_dict() == two.to_dict() | {"suite": tmp_path.name}


def test_records_of_other_corrupted_images_are_not_used(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, said = Linear(192, 10), Logged()
    bt.evaluate(model, data, SUITE, out=tmp_path)
    monkeypatch.setattr("buttress.data.corruptions.dataset.CORRUPTION_VERSION", -1)
    bt.evaluate(model, data, SUITE, out=tmp_path, progress=said)
    assert len(said.tasks) == 6
    assert any("corruption_source" in line for line in said.lines)


def test_shards_give_the_verdicts_of_the_whole(data: Dataset, tmp_path: Path) -> None:
    model = Linear(192, 10).double()
    whole = bt.evaluate(model, data, SUITE)
    for number in (2, 1):
        part = ImageShard(number, 2)
        bt.evaluate(model, part.select(data), SUITE, out=part.folder(tmp_path))
    found = merge_shards(tmp_path, 2, data)
    assert found is not None
    for name in NAMES:
        assert np.array_equal(found.correct[name], whole.correct[name])
    assert found.corruptions.to_dict() == whole.corruptions.to_dict()  # type: ignore[union-attr]


@pytest.mark.parametrize("counts", [True, False])
def test_worst_case_only_gives_the_same_worst_case_for_less(data: Dataset, counts: bool) -> None:
    model = Linear(192, 10)
    spec = load_suite(SUITE).model_copy(update={"corruptions_in_worst_case": counts})
    table = bt.evaluate(model, data, spec)
    union = bt.evaluate(model, data, spec.model_copy(update={"mode": "worst_case"}))
    assert np.array_equal(union.is_robust, table.is_robust)
    for name in NAMES[1:-1]:
        assert union.accuracy[name] == table.accuracy[name], "corruptions see all images"
    last = union.records[NAMES[-1]]
    assert np.array_equal(last.correct, table.is_robust)
    passes = [e.records[NAMES[-1]].metadata["forward_passes"] for e in (union, table)]
    assert passes[0] < passes[1] if counts else passes[0] == passes[1]


def test_until_prepares_the_network_once(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "BLOCK_IMAGES", 12)
    calls, select = list[int](), FastModel.select

    def counted(*args: Any, **kwargs: Any) -> FastModel:
        calls.append(1)
        return select(*args, **kwargs)

    monkeypatch.setattr(FastModel, "select", counted)
    found = evaluate_until(Linear(192, 10), data, SUITE, 0.001)
    assert len(found) == 48
    assert calls == [1]
    whole = bt.evaluate(Linear(192, 10), data, SUITE)
    assert found.corruptions.accuracy == whole.corruptions.accuracy  # type: ignore[union-attr]


def test_classes_add_up_to_the_whole(data: Dataset) -> None:
    found = bt.evaluate(Linear(192, 10), data, SUITE)
    classes = found.per_class()
    assert sum(row.images for row in classes.values()) == 48
    for name, value in {
        "clean": found.accuracy["clean"],
        "pgd:Linf:0.01": found.accuracy["pgd:Linf:0.01"],
        "corruptions": found.corruptions.accuracy,  # type: ignore[union-attr]
        "worst_case": found.worst_case,
    }.items():
        total = sum(row.accuracy[name].accuracy * row.images for row in classes.values())
        assert total / 48 == pytest.approx(value)
    assert set(classes) == {"abcdefghij"[k] for k in data.labels.tolist()}
    printed = found.to_dict()["per_class"]
    for name, row in classes.items():
        assert printed[name]["images"] == row.images
        for column, estimate in row.accuracy.items():
            low, high = estimate.interval
            assert printed[name][column] == {"accuracy": estimate.accuracy, "interval": (low, high)}
            assert 0 <= low <= estimate.accuracy <= high <= 1
            assert high - low > 0.1, "few images"
            assert estimate.n == row.images
    clean = classes[sorted(classes)[0]].accuracy["clean"]
    assert clean.correct == round(clean.accuracy * clean.n)
    assert clean.interval == wilson_interval(clean.correct, clean.n)


def test_frost_says_in_its_record_that_it_is_drawn(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = ["corruption:frost:3", "corruption:fog:3", "pgd:Linf:0.01"]
    model = Linear(192, 10).eval()
    monkeypatch.setattr("buttress.data.corruptions.frost.photograph_folder", lambda: None)
    found = bt.evaluate(model, data, suite, out=tmp_path)
    names = {
        n: [f.check for f in r.findings if f.check == "unofficial_corruptions"]
        for n, r in load_evaluation(tmp_path).records.items()
    }
    assert names.pop("frost-3") == ["unofficial_corruptions"]
    assert not any(names.values())
    (told,) = [f for f in found.findings if f.check == "unofficial_corruptions"]
    assert told.severity == "note"
    assert "drawn" in told.message
    assert found.warnings == ()
    module = importlib.import_module("buttress.evaluation.evaluate")
    for source in ("x-official", "x version 1 photographs"):
        monkeypatch.setattr(module, "corruption_source", lambda *a, source=source, **k: source)
        published = bt.evaluate(model, data, suite)
        assert "unofficial_corruptions" not in [f.check for f in published.findings]


def test_the_command_groups_corruptions_and_shows_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buttress.data.corruptions.frost.photograph_folder", lambda: None)
    net = tmp_path / "net.py"
    net.write_text(
        "import torch\nfrom torch import nn\n\n\ndef net(num_classes=10):\n"
        "    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))\n"
    )
    args = ["evaluate", f"{net}:net", "--data", "digits", "--limit", "20", "--out", str(tmp_path)]
    suite = ["--suite", "clean,corruptions:1,pgd:Linf:0.01", "--per-class"]
    assert run_cli([*args, *suite]) == 0
    said = capsys.readouterr().out
    rows = [line.split()[0] for line in said.splitlines()[2:6]]
    assert rows == ["clean", "pgd:Linf:0.01", "corruptions", "worst-case"]
    assert "mean over 15 corrupted copies of each image, mCE" in said
    assert "included in the worst-case robust accuracy" in said
    assert "fog" not in said
    assert "note: frost is not generated as in the published dataset" in said
    assert "class  images" in said
    assert len(list((tmp_path / "custom-20").glob("*.parquet"))) == 17
