"""The command line as a user meets it: results, mistakes, exit codes."""

from __future__ import annotations

import errno
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from buttress.cli.commands import COMMANDS
from buttress.cli.listing import KINDS
from buttress.cli.main import run_cli

QUICK = ["--set", "epochs=1", "--set", "validation.limit=16", "--limit", "64", "--device", "cpu"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "r1"
    assert run_cli(["train", "--model", "vit_tiny", "--data", "digits", "--recipe",
                    "quickstart-at", "--out", str(out), *QUICK]) == 0  # fmt: skip
    return out


def fails(args: list[str], capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> None:
    """One line on stderr with these words, nothing on stdout, no traceback."""
    assert run_cli(args) == code
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.strip().splitlines()
    assert len(lines) == 1, said.err
    for word in words:
        assert word in lines[0]


def test_help_names_every_command_and_imports_no_torch() -> None:
    code = (
        "import sys\nfrom buttress.cli.main import run_cli\nassert run_cli(['--help']) == 0\n"
        "assert 'torch' not in sys.modules and 'pydantic' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in COMMANDS:
        assert name in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([name, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_everything_can_be_listed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["list", kind]) == 0
    assert capsys.readouterr().out
    assert run_cli(["list", kind, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_lists_are_cut_by_tag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["list", "models", "--tag", "transformer", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    assert all("transformer" in row["tags"] for row in rows)


def test_train_evaluate_analyze_report(
    run_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    suite = "clean,pgd:Linf:0.1,pgd:L2:1"
    assert run_cli(["evaluate", str(run_dir), "--suite", suite, "--limit", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 20
    assert set(found["attacks"]) == {"clean", "pgd:Linf:0.1", "pgd:L2:1"}
    assert found["worst_case"]["accuracy"] <= found["attacks"]["clean"]["accuracy"]
    plot = tmp_path / "sparsity.png"
    assert run_cli(["analyze", "sparsity", str(run_dir), "--plot", str(plot)]) == 0
    assert "of the largest" in capsys.readouterr().out
    assert plot.stat().st_size > 5000
    assert run_cli(["report", str(run_dir), "--out", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report" / "index.html").is_file()


def test_finetune_says_what_it_took(
    run_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, weights = tmp_path / "r2", str(run_dir / "best.pt")
    args = ["finetune", str(run_dir), "--data", "digits", "--out", str(out), *QUICK]
    assert run_cli(args) == 0
    said = capsys.readouterr().out
    assert re.search(r"from r1: [1-9]\d* tensors loaded", said)
    assert "best epoch 1" in said
    assert run_cli([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["finetuned_from"]["source"] == "r1"
    assert found["epochs"] == 1
    low, high = found["best_val_clean_interval"]
    assert low <= found["best_val_clean"] <= high
    assert found["val_images"] == 16
    assert re.search(r"clean, [\d.]+% \([\d.]+ to [\d.]+\) robust \(16 validation", said)
    args = ["finetune", weights, "--data", "digits", "--recipe", "quickstart-standard", *QUICK]
    args += ["--model", "vit_tiny", "--out", str(tmp_path / "r3")]
    fails([*args, "--model-arg", "patch=4"], capsys, "'patch'", "activation")
    assert run_cli([*args, "--model-arg", "activation=silu", "--json"]) == 0
    capsys.readouterr()
    run = json.loads((tmp_path / "r3" / "run.json").read_text())
    assert run["spec"]["model_args"] == {"activation": "silu"}
    fails(
        ["finetune", weights, *args[2:6], "--out", str(tmp_path / "r4")],
        capsys,
        "contains weights only; name their architecture",
    )


def test_mistakes_are_one_line(
    run_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out = ["--out", str(tmp_path / "x")]
    train = ["train", "--data", "digits", "--recipe", "quickstart-at"]
    fails([*train, "--model", "vit_tinny", *out], capsys, "vit_tinny", "did you mean 'vit_tiny'")
    fails([*train, "--model", "vit_tiny", *out, "--set", "epoch=3"], capsys, "'epoch'", "'epochs'")
    fails([*train, "--model", "vit_tiny", *out, "--set", "threat=Linf:8"], capsys, "8/255")
    fails(
        [*train, "--model", "vit_tiny", "--out", str(run_dir)],
        capsys,
        "already contains a run with other settings",
    )
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    fails(["train", "--data", "cifar10", "--recipe", "quickstart-at", "--model", "vit_tiny", *out],
          capsys, "buttress data get cifar10")  # fmt: skip
    fails(["evaluate", str(run_dir), "--suite", "pgd:Linf:8"], capsys, "8/255")
    fails(["evaluate", str(tmp_path / "nothing.pt"), "--data", "digits"], capsys, "nothing.pt")
    fails(["analyse", "sparsty", str(run_dir)], capsys, "did you mean 'sparsity'")
    fails(["report", str(tmp_path / "empty")], capsys, "empty")
    assert not (tmp_path / "x").exists()


def test_arguments_of_the_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train = ["train", "--model", "xcit_tiny", "--data", "digits", "--recipe",
             "quickstart-standard", "--out", str(tmp_path / "x"), *QUICK]  # fmt: skip
    fails([*train, "--model-arg", "drop_pat=0.5"], capsys, "drop_pat", "drop_path")
    fails([*train, "--model-arg", "drop_path"], capsys, "KEY=VALUE", "'drop_path'")
    assert run_cli([*train, "--model-arg", "drop_path=0.5", "--model-arg", "patch=16"]) == 0
    spec = json.loads((tmp_path / "x" / "run.json").read_text())["spec"]
    assert spec["model_args"] == {"drop_path": 0.5, "patch": 16}


def test_recipes_are_listed_with_what_to_expect(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["list", "recipes", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert "50.03 AutoAttack" in rows["robustwrn-sat"]["expected"]
    assert rows["robustwrn-sat"]["cost"].startswith("100 epochs")


def test_a_model_with_the_wrong_number_of_classes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 7))\n"
    )
    what = f"{tmp_path}/net.py:net"
    fails(["evaluate", what, "--data", "digits", "--suite", "quickstart"], capsys,
          "10 classes", "returns 7")  # fmt: skip


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_is_one_line_and_loses_nothing(
    number: int, run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = f"clean,pgd:L2:0.{number}"
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(number, "no", str(run_dir))

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", full)
        fails(["evaluate", str(run_dir), "--suite", suite, "--limit", "4"], capsys,
              "finished work is saved", code=1)  # fmt: skip
    assert {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()} == before
    assert run_cli(["evaluate", str(run_dir), "--suite", suite, "--limit", "4"]) == 0


TRAIN = ["train", "--model", "vit_tiny", "--data", "digits", "--recipe", "quickstart-standard",
         "--set", "epochs=1", "--limit", "16", "--device", "cpu", "--out"]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_output_folder_that_cannot_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    fails([*TRAIN, "/proc/x"], capsys, "cannot write to /proc", "another folder")


def test_a_deleted_working_directory_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    fails([*TRAIN, "run"], capsys, "the current directory was deleted", code=1)
    monkeypatch.chdir(tmp_path)


def test_a_file_where_the_folder_should_be_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    fails([*TRAIN, str(tmp_path / "file")], capsys, "is not a run")
    fails([*TRAIN, str(tmp_path / "file" / "run")], capsys, "move away", code=1)


@pytest.mark.parametrize("name", ["best.pt", "last.pt", "done.json", "train.jsonl", "eval"])
def test_a_file_replaced_by_a_folder_or_the_reverse_is_one_line(
    name: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(run_dir, tmp_path / "run")
    if name == "eval":
        shutil.rmtree(run / name, ignore_errors=True)
        (run / name).write_text("a file")
        args = ["evaluate", str(run), "--suite", "clean,pgd:L2:1", "--limit", "4"]
    else:
        (run / name).unlink()
        (run / name / "in it").mkdir(parents=True)
        args = ["train", "--model", "vit_tiny", "--data", "digits", "--recipe", "quickstart-at",
                "--out", str(run), *QUICK]  # fmt: skip
    assert run_cli(args) == 1
    last_line = capsys.readouterr().err.strip().splitlines()[-1]
    assert last_line.startswith("buttress:")
    assert name in last_line
    assert "move away" in last_line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_a_signal_it_exits_130(number: signal.Signals, tmp_path: Path) -> None:
    args = [sys.executable, "-m", "buttress.cli.main", *TRAIN, str(tmp_path / "run")]
    args[args.index("epochs=1")] = "epochs=400"
    child = subprocess.Popen(args, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "train.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(number)
    _, said = child.communicate(timeout=100)
    assert child.returncode == 130, said.decode()
    assert b"Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_interruption_exits_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("buttress.data.download_dataset", interrupted)
    assert run_cli(["data", "get", "digits"]) == 130
    assert "again" in capsys.readouterr().err


def test_usage_errors_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["trane"]) == 2
    assert run_cli(["train"]) == 2
    assert "Missing option" in capsys.readouterr().err
