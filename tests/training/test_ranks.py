"""One model trained by two processes."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from buttress.cli.main import run_cli
from buttress.errors import UserError
from buttress.models import create_model
from buttress.models.loading.checkpoint import load_checkpoint
from buttress.results.run import Run
from buttress.training import train
from buttress.training.distributed import devices_warning

RECIPE = """
epochs: {epochs}
batch_size: 32
objective: {{name: {objective}}}
threat: Linf:0.05
optimizer: {{name: sgd, lr: 0.05, momentum: 0.9}}
augmentation: {{crop_padding: 2}}
l1_weight: 1.0e-5
accumulation_steps: 2
clip_grad_norm: 5.0
validation: {{attack: {{name: pgd, args: {{steps: 2}}}}, limit: 64}}
"""
MODEL = """
from torch import nn
def net(num_classes=10):
    return nn.Sequential(nn.Conv2d(3, 8, 5, 4), nn.BatchNorm2d(8), nn.SiLU(),
                         nn.Flatten(), nn.Linear(8 * 49, num_classes))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "net.py").write_text(MODEL)
    for objective in ("standard", "trades", "free"):
        text = RECIPE.format(objective=objective, epochs=2)
        (folder / f"{objective}.yaml").write_text(text)
    (folder / "long.yaml").write_text(RECIPE.format(objective="standard", epochs=400))
    return folder


def go(place: Path, recipe: str, devices: int, out: str) -> Run:
    return train(
        f"{place}/net.py:net", "digits", place / f"{recipe}.yaml", place / out, limit=160,
        device="cpu", devices=devices,
    )  # fmt: skip


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("standard", "free")]


@pytest.mark.parametrize("objective", ["trades", *OTHERS])
def test_two_processes_learn_what_one_learns(place: Path, objective: str) -> None:
    """The same images, gradients and BatchNorm statistics; only sums are rounded otherwise."""
    one, two = (go(place, objective, n, f"{objective}-{n}") for n in (1, 2))
    for a, b in zip(one.history, two.history, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=2e-3)
        assert a["train_accuracy"] == pytest.approx(b["train_accuracy"], abs=0.03)
        assert a["val_clean"] == pytest.approx(b["val_clean"], abs=0.05)
    first, second = (load_checkpoint(run.checkpoint("last"))["model"] for run in (one, two))
    assert first.keys() == second.keys()
    for name, weight in first.items():
        assert (weight - second[name]).float().norm() <= 0.02 * weight.float().norm() + 1e-3, name


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(place: Path) -> None:
    whole = go(place, "free", 1, "whole")

    class Stop(Exception):
        pass

    class AfterOne:
        def on_start(self, *args: object) -> None: ...

        def on_epoch(self, metrics: object) -> None:
            raise Stop

        def on_end(self, *args: object) -> None: ...

    with pytest.raises(Stop):
        train(f"{place}/net.py:net", "digits", place / "free.yaml", place / "moved", limit=160,
              device="cpu", loggers=[AfterOne()])  # fmt: skip
    run = go(place, "free", 2, "moved")
    assert [row["epoch"] for row in run.history] == [1, 2]
    assert run.history[0]["loss"] == whole.history[0]["loss"], "made by one process"
    assert run.history[1]["loss"] == pytest.approx(whole.history[1]["loss"], rel=1e-3)
    assert torch.distributed.is_initialized() is False
    assert "LOCAL_RANK" not in os.environ


def children(pid: int) -> list[int]:
    command = ["ps", "-o", "pid=", "--ppid", str(pid)]
    pids = subprocess.run(command, capture_output=True, text=True).stdout
    return [int(word) for word in pids.split()]


def can_be_interrupted() -> None:
    """Also where the tests themselves run in the background of a shell, which ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_dead_process_ends_the_run_and_the_same_command_goes_on(place: Path) -> None:
    out = place / "killed"
    args = [sys.executable, "-m", "buttress.cli.main", "train", "--data", "digits", "--device",
            "cpu", "--limit", "160", "--model", f"{place}/net.py:net", "--recipe",
            str(place / "long.yaml"), "--out", str(out), "--devices", "2"]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(args, env=env, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (out / "train.jsonl").exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    (other,) = children(process.pid)
    os.kill(other, signal.SIGKILL)
    _, output = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "a training process exited with code -9" in output
    assert "Traceback" not in output
    done = len(Run(out).history)
    assert 0 < done < 400
    epochs = done + 2
    assert load_checkpoint(out / "last.pt")["epoch"] >= done
    shorter = subprocess.Popen(
        args, env=env, stderr=subprocess.PIPE, text=True, preexec_fn=can_be_interrupted
    )
    while len(Run(out).history) < epochs and time.monotonic() < deadline + 120:
        assert shorter.poll() is None, shorter.stderr.read() if shorter.stderr else ""
        time.sleep(0.1)
    shorter.send_signal(signal.SIGINT)
    shorter.communicate(timeout=120)
    assert len(Run(out).history) >= epochs


def test_no_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="devices"):
        train("resnet_tiny", "digits", "quickstart-at", tmp_path / "run", devices=0)
    assert not (tmp_path / "run").exists()


def test_several_processes_on_a_cpu_are_advised_against_for_batchnorm() -> None:
    with_norm, without = (
        create_model(name, num_classes=10) for name in ("resnet_tiny", "vit_tiny")
    )
    warning = devices_warning(with_norm, "cpu", 2)
    assert warning is not None
    assert "study run --workers 2" in warning
    assert devices_warning(with_norm, "cpu", 1) is None
    assert devices_warning(without, "cpu", 2) is None


def test_training_in_processes_on_a_cpu_warns_at_run_time_and_in_the_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("buttress.training.train")

    def stop(*_: object) -> None:
        raise UserError("nothing is trained here")

    monkeypatch.setattr(module, "train_locked_run", stop)
    for name, is_warned in (("resnet_tiny", True), ("vit_tiny", False)):
        out = str(tmp_path / name)
        code = run_cli(
            ["train", "--model", name, "--data", "digits", "--recipe", "quickstart-at",
             "--device", "cpu", "--devices", "2", "--out", out]
        )  # fmt: skip
        errors = capsys.readouterr().err
        assert code == 2
        assert "nothing is trained here" in errors
        assert ("takes longer than it saves" in errors) == is_warned
    run_cli(["train", "--help"])
    assert "On a CPU, models with BatchNorm train slower" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_compiled_training_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []

    def compile_nothing(model: object) -> object:
        compiled.append(model)
        return model

    monkeypatch.setattr(torch, "compile", compile_nothing)
    run = train("resnet_tiny", "digits", "quickstart-at", tmp_path, limit=64, compile=True)
    assert len(compiled) == 1
    assert run.summary["compiled"] is True
