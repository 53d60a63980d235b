"""`buttress study` as a user meets it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from buttress.cli.console import format_amount, format_duration
from buttress.cli.main import run_cli
from buttress.results.diagnosis import Diagnosis, Finding
from buttress.results.evaluation import load_evaluation
from buttress.results.run import Run
from buttress.results.study_result import read_study_result
from buttress.studies.runner.run import parse_shard

STUDY = {
    "question": "Does a small network hold?",
    "grid": {
        "base": {
            "model": "vit_tiny", "dataset": "digits", "train_limit": 64,
            "recipe": "quickstart-standard", "overrides": ["epochs=1", "validation.limit=16"],
        },
        "seeds": [0, 1],
        "suites": ["quickstart"],
        "test_limit": 8,
        "columns": {"clean": {"metric": "clean"}, "worst_case": {}},
    },
    "claims": [{
        "id": "T1", "statement": "attacks do not help",
        "predicate": {
            "name": "column_higher", "args": {"column": "clean", "baseline": "worst_case"}},
    }],
}  # fmt: skip


def write(folder: Path, content: object, name: str = "tiny.yaml") -> str:
    path = folder / name
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def ask(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict:  # type: ignore[type-arg]
    assert run_cli(["study", *args, "--json"]) == code
    found: dict = json.loads(capsys.readouterr().out)  # type: ignore[type-arg]
    return found


def test_shards_status_and_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, out = write(tmp_path, STUDY), ("--out", str(tmp_path / "results"))
    plan = ask(capsys, "plan", file, *out, "--device-name", "cpu-core")
    assert plan["runs_by_state"]["new"] == 2
    assert plan["flops"] > 0
    first = ask(capsys, "run", file, *out, "--shard", "1/2", "--workers", "1", "--device", "cpu")
    assert (first["left"], first["report"]) == (1, None)
    status = ask(capsys, "status", file, *out)
    assert status["plan"]["runs_by_state"] == {"done": 1, "started": 0, "failed": 0, "new": 1}
    assert status["seconds_left"] > 0
    assert status["active_runs"] == []
    second = ask(capsys, "run", file, *out, "--shard", "2/2", "--workers", "1", "--device", "cpu")
    assert second["left"] == 0
    assert Path(second["report"]).is_file()
    answer = read_study_result(tmp_path / "results/studies/tiny-smoke/answer.json")
    assert (answer.total_runs, answer.finished_runs) == (2, 2)
    assert [claim.id for claim in answer.claims] == ["T1"]
    assert run_cli(["study", "status", file, *out]) == 0
    assert "2 of 2 done" in capsys.readouterr().out
    assert run_cli(["study", "report", file, *out]) == 0
    said = capsys.readouterr().out
    assert "T1" in said
    assert "report:" in said
    assert re.search(r"\d% \(\d+\.\d to \d+\.\d\)", said), "numbers have their intervals"
    assert "not trustworthy" not in said

    run = Run(next(iter((tmp_path / "results/runs").iterdir())))
    weights = (
        load_evaluation(run.suite_folder("quickstart")).records["clean"].metadata["weights_digest"]
    )
    flat = Finding(check="zero_gradient", severity="untrustworthy", message="flat", remedy="look")
    told = Diagnosis(threat="Linf:0.06", dataset="digits", split="test", images=9, seed=0,
                     weights_digest=weights, data_fingerprint="", checks=(),
                     findings=(flat,))  # fmt: skip
    told.save(run.analysis_file("doctor"))
    assert run_cli(["study", "report", file, *out]) == 0
    assert capsys.readouterr().out.count("not trustworthy") == 2  # both columns of the only row


def test_a_run_that_fails_is_said_and_the_exit_code_is_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    axes = {"lr": {"good": {}, "bad": {"overrides": ["epochs=1", "validation.limit=5000"]}}}
    grid = {**STUDY["grid"], "axes": axes, "seeds": [0], "suites": [], "columns": {}}  # type: ignore[dict-item]
    file = write(tmp_path, {**STUDY, "grid": grid, "claims": []})
    out = ("--out", str(tmp_path / "results"))
    found = ask(capsys, "run", file, *out, "--workers", "1", "--device", "cpu", code=1)
    assert len(found["failed_here"]) == 1
    assert "5000" in next(iter(found["failed_here"].values()))
    assert found["answer"]["finished_runs"] == 1
    status = ask(capsys, "status", file, *out, code=1)
    assert status["plan"]["runs_by_state"]["failed"] == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["plan", "quickstarrt"], "quickstart"),
        (["plan", "quickstart", "--scale", "huge"], "paper"),
        (["plan", "quickstart", "--device-name", "abacus"], "a100"),
        (["run", "quickstart", "--shard", "3/2"], "I/N"),
    ],
)
def test_mistakes_are_one_line(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_cli(["study", *args, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err.strip().splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["study", "list", "--json"]) == 0
    assert "quickstart" in [row["name"] for row in json.loads(capsys.readouterr().out)]


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_no_lock_and_130(sent: signal.Signals, tmp_path: Path) -> None:
    base = {**STUDY["grid"]["base"], "overrides": ["epochs=400", "validation.limit=16"]}  # type: ignore[index]
    file = write(tmp_path, {**STUDY, "grid": {**STUDY["grid"], "base": base}})  # type: ignore[dict-item]
    command = [sys.executable, "-m", "buttress.cli.main", "study", "run", file, "--workers", "2"]
    child = subprocess.Popen(
        [*command, "--out", str(tmp_path / "results"), "--device", "cpu"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    deadline = time.monotonic() + 200
    while not list(tmp_path.rglob("train.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    child.send_signal(sent)
    _, said = child.communicate(timeout=100)
    assert child.returncode == 130, said.decode()
    assert b"again" in said
    assert list(tmp_path.rglob("train.jsonl"))
    assert not list(tmp_path.rglob("*.lock"))


def test_numbers_are_read_by_people() -> None:
    assert [format_amount(v, "FLOP") for v in (12.0, 3.14e12)] == ["12 FLOP", "3.14 TFLOP"]
    durations = {3: "3 s", 600: "10 min", 7200: "2 h", 3e6: "34.7 days", 3.2e7: "370 days"}
    durations |= {1.737e8: "5.5 years", 5e10: "1,584 years"}
    assert [format_duration(s) for s in durations] == list(durations.values())
    assert "unknown" in format_duration(None)
    assert parse_shard("2/8") == (2, 8)


def test_a_published_table_beside_the_study_file_is_found(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    published = {"file": "own-table.csv", "rows": {"model": "network"}}
    grid = {**STUDY["grid"], "axes": {"model": {"vit": {"model": "vit_tiny"}}}}  # type: ignore[dict-item]
    file = write(tmp_path / "own", {**STUDY, "grid": grid, "published": published})
    args = ("report", file, "--out", str(tmp_path / "results"))
    assert run_cli(["study", *args]) == 2
    assert "own-table.csv; put it beside the study file" in capsys.readouterr().err
    (tmp_path / "own" / "own-table.csv").write_text("network,clean\nvit,87.5\n")
    (row,) = ask(capsys, *args)["answer"]["rows"]
    assert row["values"]["clean"]["published"] == 0.875
    saved = (tmp_path / "results" / "studies").rglob("*.json")
    assert not any(str(tmp_path) in path.read_text() for path in saved)
