"""Records of verdicts that are damaged, forged or not records: none is read as a good one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from buttress.errors import CorruptFileError, RunError
from buttress.evaluation import load_evaluation
from buttress.evaluation.subsets import merge_shards
from buttress.results.attack_record import (
    METADATA_KEY,
    AttackRecord,
    content_digest,
    read_attack_record,
    write_attack_record,
)
from buttress.results.core import RECORD_VERSION
from hostile_cases import CUTS, cut, flipped, guarded, refusal, unless_refused

N = 200


def good(name: str = "pgd-linf") -> AttackRecord:
    source = np.random.default_rng(0)
    labels = source.integers(0, 10, N)
    predictions = np.where(source.random(N) < 0.5, labels, (labels + 1) % 10)
    return AttackRecord(
        name,
        ids=np.arange(N) * 7,
        labels=labels,
        predictions=predictions,
        correct=predictions == labels,
        loss=source.random(N).astype(np.float32),
        perturbation_size=source.random(N).astype(np.float32),
        metadata={"attack": "pgd", "suite_position": 1, "class_names": [str(k) for k in range(10)]},
    )


def same(a: AttackRecord, b: AttackRecord) -> bool:
    fields = ("ids", "labels", "predictions", "correct", "loss", "perturbation_size")
    whole = all(np.array_equal(getattr(a, f), getattr(b, f)) for f in fields)
    return whole and a.name == b.name and a.metadata == b.metadata


@lru_cache
def good_bytes() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pgd-linf.parquet"
        write_attack_record(path, good())
        return path.read_bytes()


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    **{f"cut at {share}": partial(cut, share=share) for share in CUTS},
    **{f"flip {seed}": partial(flipped, seed=seed) for seed in range(80)},
    "without its end": lambda content: content[:-1],
    "twice": lambda content: content + content,
    "text": lambda content: b"verdicts",
    "zeros": lambda content: bytes(len(content)),
    "a length beyond the file": lambda content: content[:-8] + b"\xff\xff\xff\x7fPAR1",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged(name: str, tmp_path: Path) -> None:
    path = tmp_path / "pgd-linf.parquet"
    path.write_bytes(DAMAGED[name](good_bytes()))
    with guarded(tmp_path):
        found = unless_refused(lambda: read_attack_record(path), "pgd-linf.parquet")
    assert found is None or same(found, good())  # a bit that no number depends on


@pytest.mark.slow
def test_damaged_many_times(tmp_path: Path) -> None:
    path = tmp_path / "pgd-linf.parquet"
    for seed in range(1000, 4000):
        path.write_bytes(flipped(good_bytes(), seed, 1 + seed % 4))
        found = unless_refused(lambda: read_attack_record(path), "pgd-linf.parquet")
        assert found is None or same(found, good()), seed


def forge(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Path:
    """A record with a right checksum over wrong values."""
    record = good(path.stem)
    columns: dict[str, Any] = {
        "id": record.ids,
        "label": record.labels,
        "prediction": record.predictions,
        "correct": record.correct,
        "loss": record.loss,
        "distance": record.perturbation_size,
    }
    right: dict[str, Any] = {
        "record_version": RECORD_VERSION,
        "name": record.name,
        "metadata": dict(record.metadata),
    }
    given = change(columns, right)
    meta = given if isinstance(given, (dict, list)) else right
    if isinstance(meta, dict) and isinstance(meta.get("metadata"), dict):
        arrays = {n: pa.table({n: c}).column(n).to_numpy() for n, c in columns.items()}
        meta.setdefault("sha256", content_digest(arrays, meta["metadata"]))
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(meta).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def column(name: str, make: Callable[[Any], Any]) -> Callable[[dict[str, Any], Any], None]:
    def change(columns: dict[str, Any], meta: Any) -> None:
        columns[name] = make(columns[name])

    return change


def made(**values: Any) -> Callable[[Any, dict[str, Any]], None]:
    return lambda columns, meta: meta["metadata"].update(values)


def named(name: Any) -> Callable[[Any, dict[str, Any]], None]:
    return lambda columns, meta: meta.update(name=name)


def at(index: int, value: Any) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        values = values.copy()
        values[index] = value
        return values

    return change


def deep() -> Any:
    whole: Any = {}
    for _ in range(400):
        whole = {"a": whole}
    return whole


FORGED: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "no ids": lambda columns, meta: columns.__delitem__("id"),
    "no verdicts": lambda columns, meta: columns.__delitem__("correct"),
    "ids as numbers with a point": column("id", lambda v: v.astype(np.float64)),
    "ids as texts": column("id", lambda v: [str(i) for i in v]),
    "ids as times": column("id", lambda v: v.astype("datetime64[ns]")),
    "ids of another width": column("id", lambda v: v.astype(np.int32)),
    "ids without sign": column("id", lambda v: v.astype(np.uint64)),
    "ids with holes": column("id", lambda v: [None, *v[1:].tolist()]),
    "ids as lists": column("id", lambda v: [[int(i)] for i in v]),
    "verdicts as numbers": column("correct", lambda v: v.astype(np.uint8)),
    "verdicts as numbers with a point": column("correct", lambda v: v.astype(np.float32)),
    "verdicts with holes": column("correct", lambda v: [None, *v[1:].tolist()]),
    "loss in another precision": column("loss", lambda v: v.astype(np.float64)),
    "an id twice": column("id", at(0, 7)),
    "a label below zero": column("label", at(0, -1)),
    "a label beyond the classes": column("label", at(0, 10)),
    "a prediction below zero": column("prediction", at(0, -5)),
    "a prediction beyond the classes": column("prediction", at(0, 1 << 40)),
    "right with a wrong prediction": column("correct", lambda v: np.ones_like(v)),
    "a distance of NaN": column("distance", at(3, np.nan)),
    "a distance without end": column("distance", at(3, np.inf)),
    "a distance below zero": column("distance", at(3, -1.0)),
    "metadata that are a list": lambda columns, meta: [1, 2],
    "metadata without a name": lambda columns, meta: meta.__delitem__("name"),
    "metadata without how": lambda columns, meta: meta.__delitem__("metadata"),
    "how as a text": lambda columns, meta: {**meta, "metadata": "x", "sha256": "y"},
    "how as a list": lambda columns, meta: {**meta, "metadata": [1], "sha256": "y"},
    "a checksum of another type": lambda columns, meta: {**meta, "sha256": 5},
    "a checksum of None": lambda columns, meta: {**meta, "sha256": None},
    "another name": named("clean"),
    "a name that leads out": named("../../evil"),
    "a name that starts at the root": named("/tmp/evil"),
    "an empty name": named(""),
    "a name that is a number": named(7),
    "a name of half a character": named("\ud800"),
    "a very long name": named("x" * 10_000),
    "suite_position as text": made(suite_position="first"),
    "suite_position as a list": made(suite_position=[1]),
    "suite_position None": made(suite_position=None),
    "class_names as a number": made(class_names=10),
    "class_names of numbers": made(class_names=[1, 2, 3]),
    "fewer classes": made(class_names=["0", "1"]),
    "warnings as a text": made(warnings="do not trust this"),
    "warnings of dicts": made(warnings=[{}]),
    "nonfinite_images as a text": made(nonfinite_images="none"),
    "images_available as a text": made(images_available="all"),
    "interval_width as a dict": made(interval_width={}),
    "args as a list": made(args=[1]),
    "args as a text": made(args="steps=20"),
    "stages as numbers": made(stages=[1, 2]),
    "stages of wrong lengths": made(stages=[["a", 1]]),
    "a threat as a number": made(threat=0.3),
    "an attack as None": made(attack=None),
    "seconds as a text": made(seconds="1"),
    "suite_entries as a text": made(suite_entries="clean"),
    "suite_entries of numbers": made(suite_entries=[1]),
    "versions as a list": made(versions=[]),
    "weights_digest as a list": made(weights_digest=[1]),
    "in_worst_case as a text": made(in_worst_case="no"),
    "findings as a number": made(findings=3),
    "findings of texts": made(findings=["fine"]),
    "a corruption without a name": made(attack="corruption"),
    "a severity as a text": made(attack="corruption", args={"corruption": "fog", "severity": "x"}),
    "a corruption as a list": made(attack="corruption", args={"corruption": [], "severity": 1}),
    "deep nesting": made(more=deep()),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged(name: str, tmp_path: Path) -> None:
    try:
        path = forge(tmp_path / "pgd-linf.parquet", FORGED[name])
    except RecursionError:
        pytest.skip("the checksum of this cannot be computed here either")
    with guarded(tmp_path):
        refusal(lambda: read_attack_record(path), "pgd-linf.parquet")
        refusal(lambda: load_evaluation(tmp_path))


LEGAL: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "nothing changed": lambda columns, meta: None,
    "a loss without end": column("loss", at(3, np.inf)),
    "ids of any sign": column("id", lambda v: -v),
    "a further column": lambda columns, meta: columns.update(queries=np.arange(N)),
    "further metadata": made(note={"a": [1, 2]}, warnings=["one"], stages=[["pgd", 1, 0]]),
    "no image": lambda columns, meta: columns.update({n: c[:0] for n, c in columns.items()}),
}


@pytest.mark.parametrize("name", LEGAL)
def test_odd_records_that_are_good(name: str, tmp_path: Path) -> None:
    path = forge(tmp_path / "pgd-linf.parquet", LEGAL[name])
    assert read_attack_record(path).name == "pgd-linf"


def test_outputs_that_are_no_numbers_are_said(tmp_path: Path) -> None:
    forge(tmp_path / "pgd-linf.parquet", column("loss", at(3, np.nan)))
    assert "NaN for 1 image" in load_evaluation(tmp_path).warnings[0]


def test_a_few_bytes_that_claim_many_images(tmp_path: Path) -> None:
    path = tmp_path / "pgd-linf.parquet"
    piece = pa.table({"id": pa.array(np.zeros(1 << 20, np.int64))})
    with pq.ParquetWriter(path, piece.schema) as writer:
        for _ in range(12):
            writer.write_table(piece)
    assert path.stat().st_size < 1 << 20
    with guarded(tmp_path):
        refusal(lambda: read_attack_record(path), "images")


def test_things_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    (tmp_path / "folder.parquet").mkdir()
    forge(tmp_path / "folder.parquet" / "inner.parquet", LEGAL["nothing changed"])
    with guarded(tmp_path):
        for name in ("pipe.parquet", "folder.parquet"):
            with pytest.raises(CorruptFileError, match=name):
                read_attack_record(tmp_path / name)


def test_a_copy_under_another_name_is_not_counted_twice(tmp_path: Path) -> None:
    path = forge(tmp_path / "pgd-linf.parquet", LEGAL["nothing changed"])
    (tmp_path / "apgd-linf.parquet").write_bytes(path.read_bytes())
    refusal(lambda: load_evaluation(tmp_path), "but contains that of")


@pytest.mark.parametrize("names", [["../../evil"], ["/tmp/evil"], [""], ["clean", "clean"]])
def test_shards_write_nowhere_else(names: list[str], tmp_path: Path, tiny_data: Any) -> None:
    """What a shard says the suite holds becomes the name of a file."""
    whole = tmp_path / "eval" / "suite"
    for shard in ("shard-1-of-2", "shard-2-of-2"):
        forge(whole / shard / "clean.parquet", made(suite_entries=names))
    with guarded(tmp_path, inside=whole):
        try:
            assert merge_shards(whole, 2, tiny_data) is None
        except RunError:  # the images are not these
            assert set(names) == {"clean"}


CASES = len(DAMAGED) + len(FORGED) + len(LEGAL) + 9
