"""Names from suites and records decide no place: nothing is written outside the output folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import buttress as bt
from buttress.errors import CorruptFileError, UserError
from buttress.evaluation import load_suite
from buttress.evaluation.subsets import ImageShard, merge_shards
from buttress.evaluation.suite import SuiteTarget, resolve_suite
from buttress.results.attack_record import read_attack_record, write_attack_record
from buttress.results.run import Run
from buttress.results.suite_spec import SuiteSpec
from buttress.system.files import safe_file_name
from conftest import small_net

HOSTILE = ["../../x", "/proc/x", "..", ".", "", "a/../../b", "..\\..\\x", "a\0b", "a\nb", ".hidden",
           "x" * 5000, "ü" * 300, "\udcff"]  # fmt: skip


def outside(root: Path) -> set[Path]:
    return {p for p in root.rglob("*") if "inside" not in p.relative_to(root).parts}


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_is_a_name_that_stays_in_its_folder(text: str, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / safe_file_name(text)).touch()
    assert len(list((tmp_path / "inside").iterdir())) == 1
    assert outside(tmp_path) == set()


@pytest.mark.parametrize("name", ["clean", "pgd-linf", "pgd:L2:0.5", "my suite (2)", "größe"])
def test_harmless_names_are_left_as_they_are(name: str) -> None:
    assert safe_file_name(name) == name


NO_NAMES = ["..", ".", "a\0b", "a\nb", "x" * 5000, "ü" * 300, "\udcff"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_entries_that_nobody_could_read_are_refused(name: str, tiny_data: bt.Dataset) -> None:
    for line in ({"attack": "noise", "threat": "Linf:0.1"}, {"corruption": "fog", "severity": 1}):
        spec = SuiteSpec.parse({"name": "s", "entries": [{"name": name, **line}]}, "suite")
        with pytest.raises(UserError, match="the name of an entry"):
            resolve_suite(spec, SuiteTarget(tiny_data.budgets, 8))


@pytest.mark.parametrize("name", [h for h in HOSTILE if h and h not in NO_NAMES])
def test_entries_of_a_suite(name: str, tmp_path: Path, tiny_data: bt.Dataset) -> None:
    entry = {"name": name, "attack": "noise", "threat": "Linf:0.1"}
    spec = SuiteSpec.parse({"name": "../../suite", "entries": [entry]}, "suite")
    bt.evaluate(small_net(), tiny_data, spec, out=tmp_path / "inside")
    assert len(list((tmp_path / "inside").glob("*.parquet"))) == 2
    assert outside(tmp_path) == set()


def test_two_names_that_become_one_are_refused(tiny_data: bt.Dataset) -> None:
    lines = [{"name": n, "attack": "noise", "threat": "Linf:0.1"} for n in ("a/b", "a_b")]
    spec = SuiteSpec.parse({"name": "s", "entries": lines}, "suite")
    with pytest.raises(UserError, match="two entries named 'a_b'"):
        resolve_suite(spec, SuiteTarget(tiny_data.budgets, 8))


@pytest.mark.parametrize("name", ["../../x", "/proc/x", "../../dir/own.yaml", "/tmp/own.yaml"])
def test_suites_and_analyses_of_a_run(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    for place in (run.suite_folder(name), run.analysis_file(name)):
        assert place.parent.parent == run.path
        assert place.resolve().is_relative_to(run.path)
    assert run.suite_folder("dir/own.yaml").name == "own"


def test_records_of_shards(tmp_path: Path, tiny_data: bt.Dataset) -> None:
    """A shard from elsewhere names its attack as it likes."""
    whole = tmp_path / "inside" / "deep"
    suite = load_suite(["clean", "noise-linf"])
    for number in (1, 2):
        shard = ImageShard(number, 2)
        folder = shard.folder(whole)
        bt.evaluate(small_net(), shard.select(tiny_data), suite, out=folder)
        for path in folder.glob("*.parquet"):
            record = read_attack_record(path)
            name = "../../../escaped" if record.name == "noise-linf" else record.name
            meta = {**record.metadata, "suite_entries": ["clean", "../../../escaped"]}
            write_attack_record(path, replace(record, name=name, metadata=meta))
    with pytest.raises(CorruptFileError, match="must contain the record of"):
        merge_shards(whole, 2, tiny_data)
    assert outside(tmp_path) == set()
