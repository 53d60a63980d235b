"""Folders of runs whose files hold garbage: named and left out, never a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from buttress.errors import ButtressError
from buttress.models import load_model
from buttress.report import write_report
from buttress.results.core import RECORD_VERSION, VERSION_KEY
from buttress.results.run import Run
from buttress.system.files import CHECKSUM_KEY, digest, read_json
from buttress.training.train import is_finished
from conftest import thinned
from hostile_cases import CUTS, cut, flipped, guarded, refusal
from report_runs import (
    ROBUST,
    curve,
    gallery,
    make_run,
    make_spec,
    sparsity,
    write_analysis,
    write_flags,
)

FILES = ("run.json", "done.json", "error.json", "train.jsonl")
EVIL = "<script>alert(1)</script>"
BYTES: dict[str, Callable[[bytes], bytes]] = {
    **{f"cut at {share}": partial(cut, share=share) for share in CUTS},
    **{f"flip {seed}": partial(flipped, seed=seed) for seed in range(3)},
    "null": lambda good: b"null",
    "a list": lambda good: b"[1, 2]",
    "a number": lambda good: b"7",
    "a text": lambda good: b'"done"',
    "not a number": lambda good: b'{"epochs": NaN}',
    "infinity": lambda good: b'{"epochs": 1e999}',
    "a huge number": lambda good: b'{"epochs": ' + b"9" * 10_000 + b"}",
    "deep lists": lambda good: b"[" * 100_000,
    "deep dicts": lambda good: b'{"a":' * 100_000,
    "not UTF-8": lambda good: b'{"a": "\xff\xfe"}',
    "half a character": lambda good: b'{"a": "\\ud800"}',
    "no checksum": lambda good: b"{}",
    "a checksum of another type": lambda good: b'{"sha256": 7}',
    "zeros": lambda good: bytes(100),
}


def sealed(content: Any) -> bytes:
    """What `write_record_json` would write, for anything."""
    content = {VERSION_KEY: RECORD_VERSION, **content}
    return json.dumps({**content, CHECKSUM_KEY: digest(content)}).encode()


SPEC = make_spec().model_dump(mode="json")


def spec_with(**values: Any) -> dict[str, Any]:
    return {"spec": {**SPEC, **values}, "key": "x"}


def recipe_with(**values: Any) -> dict[str, Any]:
    return spec_with(recipe={**SPEC["recipe"], **values})


# Contents with a right checksum.
HEADERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "spec None": {"spec": None},
    "spec a list": {"spec": [1]},
    "spec a text": {"spec": EVIL},
    "spec empty": {"spec": {}},
    "a key more": spec_with(nonsense=1),
    "model a list": spec_with(model=["vit_tiny"]),
    "no classes": spec_with(num_classes=0),
    "classes a text": spec_with(num_classes="many"),
    "mean a text": spec_with(mean="0.5"),
    "std None": spec_with(std=None),
    "epochs below zero": recipe_with(epochs=-1),
    "epochs a text": recipe_with(epochs="three"),
    "a threat beyond": recipe_with(threat="Linf:1e999"),
    "an objective as number": recipe_with(objective=7),
}
# Odd, but a report can show them.
SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "a model that leads out": ("run.json", spec_with(model="../../../evil")),
    "a model with markup": ("run.json", spec_with(model=EVIL)),
    "a key that leads out": ("run.json", {**spec_with(), "key": "../../../evil"}),
    "a key that is a list": ("run.json", {**spec_with(), "key": ["a"]}),
    "a huge seed": ("run.json", spec_with(seed=10**60)),
    "many classes": ("run.json", spec_with(num_classes=10**12)),
    "a category of another type": ("run.json", {**spec_with(), "category": {"a": 1}}),
    "versions of another type": ("run.json", {**spec_with(), "versions": 7}),
    "a command of another type": ("run.json", {**spec_with(), "command": [EVIL]}),
    "a time of another type": ("run.json", {**spec_with(), "time": 1e300}),
    "finetuned from a number": ("run.json", {**spec_with(), "finetuned_from": 7}),
    "half a character": ("run.json", spec_with(model="\ud800")),
    "an empty summary": ("done.json", {}),
    "epochs a text": ("done.json", {"epochs": "three"}),
    "accuracy a list": ("done.json", {"best_val_clean": [1]}),
    "accuracy huge": ("done.json", {"best_val_clean": 10**300, "best_val_robust": -5}),
    "seconds a dict": ("done.json", {"seconds": {}}),
    "warnings a number": ("done.json", {"warnings": 7}),
    "warnings of lists": ("done.json", {"warnings": [[1], None]}),
    "warnings with markup": ("done.json", {"warnings": [EVIL]}),
    "history of another type": ("done.json", {"history": [1]}),
    "a message that is a list": ("error.json", {"message": [1, 2]}),
    "a message with markup": ("error.json", {"message": EVIL}),
    "no message": ("error.json", {}),
}
ROWS: dict[str, list[Any]] = {
    "numbers": [1, 2],
    "lists": [[1], [2]],
    "null": [None],
    "texts": ["epoch"],
    "empty epochs": [{}, {}],
    "epochs of other types": [{"epoch": "one", "loss": [1], "val_clean": {}, "best": "x"}],
    "huge numbers": [{"epoch": 10**400, "loss": 1e308, "lr": -1e308, "val_robust": 1e300}],
    "numbers that are none": [{"epoch": 1, "loss": float("nan"), "val_clean": float("inf")}],
    "null everywhere": [{"epoch": None, "loss": None, "val_clean": None, "lr": None}],
    "keys with markup": [{"epoch": 1, EVIL: 1.0, "loss": EVIL}],
}
HISTORY: dict[str, bytes] = {
    name: b"\n".join(json.dumps(row).encode() for row in rows) for name, rows in ROWS.items()
} | {"no JSON": b"{epoch: 1}", "deep": b"[" * 100_000, "not UTF-8": b"\xff"}


def analysis(kind: str, result: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {"analysis": kind, "result": {**result, **values}}


ANALYSES: dict[str, Any] = {
    "no analysis": {},
    "analysis a list": {"analysis": [1], "result": {}},
    "result None": {"analysis": "sparsity", "result": None},
    "result a text": {"analysis": "curve", "result": EVIL},
    "sparsity a text": analysis("sparsity", sparsity(), sparsity="x"),
    "sparsity huge": analysis("sparsity", sparsity(), sparsity=1e300),
    "edges a number": analysis("sparsity", sparsity(), edges=5),
    "edges of texts": analysis("sparsity", sparsity(), edges=["a", "b"]),
    "counts below zero": analysis("sparsity", sparsity(), counts={"all": [-5] * 40}),
    "counts a list": analysis("sparsity", sparsity(), counts=[1]),
    "components of numbers": analysis("sparsity", sparsity(), components=[1, 2]),
    "components with markup": analysis(
        "sparsity", sparsity(), components=[{"component": EVIL, "sparsity": 0.1, "weights": 3}]
    ),
    "weights huge": analysis("sparsity", sparsity(), weights=10**400),
    "eps of two lengths": analysis("curve", curve(), eps=[0.0]),
    "eps huge": analysis("curve", curve(), eps=[1e300] * 6),
    "eps equal": analysis("curve", curve(), eps=[0.0] * 6),
    "accuracy below zero": analysis("curve", curve(), accuracy=[-5.0] * 6),
    "attack with markup": analysis("curve", curve(), attack=EVIL),
    "images a text": analysis("curve", curve(), images="x"),
    "no examples": analysis("gallery", gallery(1), examples=[]),
    "examples of numbers": analysis("gallery", gallery(1), examples=[1]),
    "a picture with markup": analysis(
        "gallery", {}, attack="pgd", examples=[{**gallery(1)["examples"][0], "clean": EVIL}]
    ),
    "a picture that is a page": analysis(
        "gallery",
        {},
        attack="pgd",
        examples=[{**gallery(1)["examples"][0], "clean": '"><script>alert(1)</script>'}],
    ),
    "classes with markup": analysis("gallery", gallery(2), classes=[EVIL] * 5),
}


def page_of(run: Run, out: Path) -> str:
    """All pages of a report on the run; nothing in them may be markup of a record."""
    write_report([run.path], out)
    pages = "".join(p.read_text(encoding="utf-8") for p in sorted(out.rglob("*.html")))
    assert EVIL not in pages
    assert "alert(1)</script>" not in pages
    return pages


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = make_run(tmp_path / "place" / "runs" / "r1", flags=ROBUST)
    (made.path / "error.json").write_bytes(sealed({"message": "before", "time": "x"}))
    return made


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", thinned(list(BYTES), 3))
def test_bytes(name: str, file: str, run: Run, tmp_path: Path) -> None:
    path = run.path / file
    path.write_bytes(BYTES[name](path.read_bytes()))
    if file == "error.json":
        (run.path / "done.json").unlink()
    with guarded(tmp_path, inside=tmp_path / "out"):
        if file != "train.jsonl":
            refusal(lambda: read_json(path), file)
        elif run.is_trained and BYTES[name](b"{}") != b"{}":
            refusal(lambda: run.history, file)
        if file == "run.json":
            refusal(lambda: run.spec, file)
            refusal(lambda: load_model(run.path), file)
        page_of(run, tmp_path / "out")


@pytest.mark.parametrize("name", HEADERS)
def test_headers(name: str, run: Run, tmp_path: Path) -> None:
    (run.path / "run.json").write_bytes(sealed(HEADERS[name]))
    with guarded(tmp_path, inside=tmp_path / "out"):
        refusal(lambda: run.spec, "run.json")
        refusal(lambda: load_model(run.path), "run.json")
        page_of(run, tmp_path / "out")


@pytest.mark.parametrize("name", SHOWN)
def test_contents_of_other_types(name: str, run: Run, tmp_path: Path) -> None:
    file, content = SHOWN[name]
    (run.path / file).write_bytes(sealed(content))
    if file == "error.json":
        (run.path / "done.json").unlink()
    with guarded(tmp_path, inside=tmp_path / "out"):
        page_of(run, tmp_path / "out")
        with pytest.raises(ButtressError):
            load_model(run.path)


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("name", HISTORY)
def test_histories(name: str, is_done: bool, run: Run, tmp_path: Path) -> None:
    (run.path / "train.jsonl").write_bytes(HISTORY[name])
    if not is_done:
        (run.path / "done.json").unlink()
        (run.path / "error.json").unlink()
    with guarded(tmp_path, inside=tmp_path / "out"):
        if is_done:
            refusal(lambda: run.history, "train.jsonl")
        page_of(run, tmp_path / "out")


@pytest.mark.parametrize("name", ANALYSES)
def test_analyses(name: str, run: Run, tmp_path: Path) -> None:
    write_analysis(run, "thing", {})
    run.analysis_file("thing").write_bytes(sealed(ANALYSES[name]))
    with guarded(tmp_path, inside=tmp_path / "out"):
        page_of(run, tmp_path / "out")


@pytest.mark.parametrize(
    "values",
    [
        {"threat": EVIL},
        {"attack": EVIL, "dataset": EVIL, "split": EVIL},
        {"args": {EVIL: EVIL, "deep": [[[1]]]}},
        {"threat": "Linf:nan"},
        {"threat": "L9:1e999"},
        {"suite_position": -(10**30)},
        {"forward_passes": 1e300, "seconds": -1.0},
        {"class_names": [EVIL] * 5},
        {"warnings": [EVIL]},
        {"weights_digest": [1], "data_fingerprint": {"a": 1}},
        {"suite_entries": ["../../evil", EVIL]},
        {"time": 5, "command": [EVIL], "python": {}, "platform": None},
    ],
    ids=lambda v: ",".join(v),
)
def test_records_in_a_report(values: dict[str, Any], run: Run, tmp_path: Path) -> None:
    write_flags(run, "pgd-linf", ROBUST["pgd-linf"], **values)
    with guarded(tmp_path, inside=tmp_path / "out"):
        page_of(run, tmp_path / "out")


@pytest.mark.parametrize("missing", ["best_epoch", "best_val_clean", "selected_on", "warnings"])
def test_a_summary_that_lacks_something_is_made_again(missing: str, run: Run) -> None:
    said: list[str] = []

    class Heard:
        def log(self, text: str) -> None:
            said.append(text)

    content = {k: v for k, v in read_json(run.path / "done.json").items() if k != missing}
    (run.path / "done.json").write_bytes(sealed(content))
    assert not is_finished(run, Heard())  # type: ignore[arg-type]
    assert not (run.path / "done.json").exists()


CASES = (
    len(FILES) * len(BYTES) + len(HEADERS) + len(SHOWN) + 2 * len(HISTORY) + len(ANALYSES) + 12 + 4
)  # fmt: skip
