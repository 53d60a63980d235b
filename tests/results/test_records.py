"""Verdicts per image, intervals, keys, and the run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from buttress.errors import CorruptFileError, OutdatedFileError, RunError, UserError
from buttress.results.attack_record import (
    METADATA_KEY,
    AttackRecord,
    cache_records,
    read_attack_record,
    read_record_metadata,
    write_attack_record,
)
from buttress.results.evaluation import Evaluation
from buttress.results.run import Run, RunFailure, find_runs
from buttress.results.run_spec import OptimizerSpec, Recipe, RunSpec, list_augmentations
from buttress.statistics import wilson_interval
from buttress.system.files import write_json


def record(name: str, correct: list[int], ids: list[int] | None = None) -> AttackRecord:
    n = len(correct)
    return AttackRecord(
        name,
        ids=np.array(ids or range(n), dtype=np.int64),
        labels=np.zeros(n, dtype=np.int64),
        predictions=1 - np.array(correct, dtype=np.int64),
        correct=np.array(correct, dtype=bool),
        loss=np.linspace(0, 1, n, dtype=np.float32),
        perturbation_size=np.zeros(n, dtype=np.float32),
        metadata={"attack": name, "eps": 0.1},
    )


def spec(**changes: object) -> RunSpec:
    base = {
        "model": "vit_tiny", "dataset": "digits", "num_classes": 10, "image_size": 32,
        "in_channels": 3, "mean": (0.0,) * 3, "std": (1.0,) * 3,
        "recipe": Recipe(epochs=2, optimizer=OptimizerSpec(lr=0.1)),
    }  # fmt: skip
    return RunSpec(**{**base, **changes})


def test_the_worst_case_is_the_mean_of_minima() -> None:
    both = Evaluation("s", {"a": record("a", [1, 1, 0, 0]), "b": record("b", [0, 0, 1, 1])})
    assert both.accuracy == {"a": 0.5, "b": 0.5}
    assert both.worst_case == 0.0
    assert both.interval("a").low < 0.5 < both.interval("a").high


def test_different_images_are_never_joined() -> None:
    with pytest.raises(RunError, match="not of the same images"):
        Evaluation("s", {"a": record("a", [1, 1]), "b": record("b", [1, 1], ids=[5, 6])})


def test_records_come_back_as_written(tmp_path: Path) -> None:
    one = record("a", [1, 0, 1])
    write_attack_record(tmp_path / "a.parquet", one)
    two = read_attack_record(tmp_path / "a.parquet")
    assert two.name == "a"
    assert two.metadata == {"attack": "a", "eps": 0.1}
    for column in ("ids", "labels", "predictions", "correct", "loss", "perturbation_size"):
        np.testing.assert_array_equal(getattr(two, column), getattr(one, column))


def test_files_of_another_version_are_refused_and_left_alone(tmp_path: Path) -> None:
    path, run = tmp_path / "a.parquet", Run(tmp_path / "run")
    write_attack_record(path, record("a", [1, 0, 1]))
    table = pq.read_table(path)
    header = json.loads(table.schema.metadata[METADATA_KEY])
    old = {"name": "a", "made": header["metadata"], "sha256": header["sha256"]}
    for version, written in ((1, old), (3, {**header, "record_version": 3})):
        encoded = json.dumps(written).encode()
        pq.write_table(table.replace_schema_metadata({METADATA_KEY: encoded}), path)
        before = path.read_bytes()
        for read in (read_attack_record, read_record_metadata):
            with pytest.raises(OutdatedFileError, match=f"version {version}, but .* reads 2; move"):
                read(path)
        assert path.read_bytes() == before
    run.open(spec())
    write_json(run.path / "run.json", run.header)
    for read_run in (lambda: run.spec, lambda: run.open(spec())):
        with pytest.raises(OutdatedFileError, match=r"run\.json has record version 1"):
            read_run()
    assert not issubclass(OutdatedFileError, CorruptFileError)  # those are made again


def test_a_record_is_kept_only_where_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_attack_record(path, record("a", [1, 0]))
    with cache_records():
        first = read_attack_record(path)
        assert read_attack_record(path) is first
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CorruptFileError), cache_records():
        read_attack_record(path)


def test_any_damage_to_a_record_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_attack_record(path, record("a", [1, 0, 1] * 50))
    whole = path.read_bytes()
    good = read_attack_record(path)
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(CorruptFileError, match=r"a\.parquet"):
            read_attack_record(path)
    for place in range(4, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            read = read_attack_record(path)
        except CorruptFileError:
            continue
        np.testing.assert_array_equal(read.correct, good.correct)  # damage to unused bytes only
        np.testing.assert_array_equal(read.ids, good.ids)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (50, 100, 0.4038, 0.5962), (10, 10, 0.7225, 1.0)],
)
def test_wilson_intervals(k: int, n: int, low: float, high: float) -> None:
    result = wilson_interval(k, n)
    assert result.low == pytest.approx(low, abs=1e-4)
    assert result.high == pytest.approx(high, abs=1e-4)


def test_wilson_covers_the_truth_95_times_in_100() -> None:
    source = np.random.default_rng(0)
    for share in (0.05, 0.3, 0.9):
        draws = source.binomial(200, share, 4000)
        inside = [
            wilson_interval(int(k), 200).low <= share <= wilson_interval(int(k), 200).high
            for k in draws
        ]
        assert 0.93 < np.mean(inside) < 0.975


def test_keys_change_with_numbers_only() -> None:
    assert spec().key() == "vit_tiny-fdf8b4f2d972"  # the golden key; a change breaks saved runs
    assert spec(seed=1).key() != spec().key()
    assert spec(model="ViT-Tiny").key() == spec().key()
    words = {"name": "n", "description": "a", "source": "s", "cost": "c", "expected": "e"}
    renamed = Recipe(**words, epochs=2, optimizer=OptimizerSpec(lr=0.1))
    assert spec(recipe=renamed).key() == spec().key()
    assert spec(recipe=Recipe(epochs=2, optimizer=OptimizerSpec(lr=0.2))).key() != spec().key()


def augmented(given: object) -> Recipe:
    body = {"epochs": 2, "optimizer": {"lr": 0.1}, "augmentation": given}
    return Recipe.parse(body, "recipe r")


def test_every_setting_of_augmentation_changes_the_key_unless_it_is_off() -> None:
    off: tuple[dict[str, Any], ...]
    off = (
        {},
        {"color_jitter": 0},
        {"auto_augment": "none"},
        {"rand_augment": None, "mixup": 0, "random_erasing": 0.0},
    )
    assert {spec(recipe=augmented(given)).key() for given in off} == {spec().key()}
    on: tuple[dict[str, Any], ...] = (
        {"crop_padding": 1}, {"horizontal_flip": True}, {"resized_crop": {}},
        {"resized_crop": {"scale": [0.5, 1]}}, {"rotation": 2}, {"color_jitter": 0.4},
        {"color_jitter": {"hue": 0.1}}, {"auto_augment": "cifar10"}, {"rand_augment": {}},
        {"rand_augment": {"num_ops": 3}}, {"random_erasing": 0.2}, {"mixup": 0.8}, {"cutmix": 1},
    )  # fmt: skip
    keys = {spec(recipe=augmented(given)).key() for given in on}
    assert len(keys | {spec().key()}) == len(on) + 1


def test_augmentations_have_names() -> None:
    assert len(set(list_augmentations())) == 16
    recipe = augmented("ablation-0101")
    on = {"cutmix": 1.0, "random_erasing": 0.25}
    fields = {"resized_crop": {}, "horizontal_flip": True, "color_jitter": 0.4}
    assert recipe == augmented({**fields, **on})
    assert augmented("ablation_1010") == augmented({**fields, "mixup": 0.8, "rand_augment": {}})
    assert Recipe.parse(recipe.model_dump(mode="json"), "again") == recipe
    keys = {spec(recipe=augmented(name)).key() for name in list_augmentations()}
    assert len(keys) == 16


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ablaton-0101", "unknown augmentation 'ablaton-0101'; did you mean 'ablation-0101'"),
        ({"rotatoin": 2}, "unknown key 'augmentation.rotatoin', did you mean 'rotation'?"),
        (
            {"rand_augment": {"magnitud": 9}},
            "unknown key 'augmentation.rand_augment.magnitud', did you mean",
        ),
        ({"resized_crop": {"scale": [1.0, 0.1]}}, "`0 < low <= high` must hold"),
        ({"random_erasing": 1.5}, "augmentation.random_erasing"),
        ({"color_jitter": -0.1}, "augmentation.color_jitter.brightness"),
        ({"auto_augment": "cifar"}, "augmentation.auto_augment"),
        ({"mixup": -1}, "augmentation.mixup"),
    ],
)
def test_mistakes_in_augmentation_are_named(given: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        augmented(given)
    assert message in str(error.value)


def test_a_run_refuses_the_folder_of_another(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
    run.open(spec())
    run.open(spec())  # the same run goes on
    assert run.state == "started"
    with pytest.raises(UserError, match=r"other settings \(recipe.epochs, seed\)"):
        run.open(spec(seed=1, recipe=Recipe(epochs=3, optimizer=OptimizerSpec(lr=0.1))))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("x")
    with pytest.raises(UserError, match="not a run"):
        Run(tmp_path / "photos").open(spec())
    assert [r.path for r in find_runs(tmp_path)] == [run.path]


def test_a_failure_is_forgotten_when_its_file_is_there(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")

    def now() -> tuple[str, RunFailure | None]:
        return run.state, run.failure

    run.open(spec())
    run.fail("diverged", run.path / "done.json")
    assert (run.state, run.is_trained) == ("failed", False)
    assert run.failure == RunFailure("diverged", "done.json")
    before = (run.path / "error.json").read_bytes()
    run.finish({"epochs": 0})
    assert now() == ("done", None)
    (run.path / "error.json").write_bytes(before)  # as if killed before it was removed
    assert now() == ("done", None)
    run.fail("no memory", run.analysis_file("sparsity"))
    assert (run.state, run.is_trained) == ("failed", True)
    run.mend([run.analysis_file("cost")])
    assert run.failure == RunFailure("no memory", "analysis/sparsity.json")
    run.mend([run.analysis_file("sparsity")])
    assert now() == ("done", None)
    (run.path / "error.json").write_text("{")
    assert run.state == "failed"
    assert "unreadable" in (run.failure or RunFailure("")).message


def test_a_changed_history_of_a_finished_run_is_noticed(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
    run.open(spec())
    run.write_history([{"epoch": 1, "loss": 2.0}])
    run.finish({"epochs": 1})
    assert run.state == "done"
    text = (run.path / "train.jsonl").read_text()
    (run.path / "train.jsonl").write_text(text.replace("2.0", "1.0"))
    with pytest.raises(CorruptFileError, match=r"train\.jsonl"):
        _ = run.history
