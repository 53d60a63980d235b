"""Training that is killed ends with the same weights as training that is not."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from buttress.errors import RunError, UserError
from buttress.models.loading.checkpoint import content_digest, load_checkpoint, save_checkpoint
from buttress.results.core import read_record_json
from buttress.results.run import Run
from buttress.results.training_images import read_training_images
from buttress.system.locks import FileLock
from buttress.system.progress import SilentProgress
from buttress.training import train
from buttress.training.train import load_resume_state

RECIPE = """
epochs: {epochs}
weight_averaging: {{decay: 0.9}}
batch_size: 64
objective: {{name: pgd_at, args: {{steps: 1}}}}
threat: Linf:0.1
optimizer: {{name: {optimizer}, lr: 0.002}}
augmentation: {{crop_padding: 2, horizontal_flip: true}}
validation: {{attack: {{name: pgd, args: {{steps: 1}}}}, limit: 16}}
"""
MODEL = """
from torch import nn
def net(num_classes=10):
    return nn.Sequential(nn.Conv2d(3, 4, 5, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3),
                         nn.Flatten(), nn.Linear(4 * 49, num_classes))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    (folder / "net.py").write_text(MODEL)
    for name in ("sgd", "adamw"):
        text = RECIPE.format(epochs=3, optimizer=name)
        (folder / f"{name}.yaml").write_text(text)
    return folder


class Logged(SilentProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


def go(place: Path, out: str, recipe: str = "adamw", progress: SilentProgress | None = None) -> Run:
    return train(
        f"{place}/net.py:net", "digits", place / f"{recipe}.yaml", place / out, limit=192,
        device="cpu", progress=progress,
    )  # fmt: skip


def weights(run: Run) -> str:
    return content_digest([load_checkpoint(run.checkpoint(w))["model"] for w in ("best", "last")])


@pytest.fixture(scope="module")
def unbroken(place: Path) -> dict[str, str]:
    return {name: weights(go(place, f"whole-{name}", name)) for name in ("sgd", "adamw")}


class Stop(Exception):
    """Stands for a kill: nothing after it runs in the training code."""


@pytest.mark.parametrize("recipe", ["sgd", "adamw"])
@pytest.mark.parametrize("after", range(1, 8))
def test_stopped_after_any_file_it_resumes_bit_for_bit(
    place: Path, unbroken: dict[str, str], recipe: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = os.fsync, 0

    def counting(handle: int) -> None:
        nonlocal written
        real(handle)
        written += stat.S_ISREG(os.fstat(handle).st_mode)
        if written == after:
            raise Stop

    out = f"cut-{recipe}-{after}"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counting)
        with pytest.raises(Stop):
            go(place, out, recipe)
    run = go(place, out, recipe)
    assert weights(run) == unbroken[recipe]
    assert [row["epoch"] for row in run.history] == [1, 2, 3]
    assert run.state == "done"


COMMAND = [
    "-m",
    "buttress.cli.main",
    "train",
    "--data",
    "digits",
    "--device",
    "cpu",
    "--limit",
    "192",
]


def test_kill_minus_nine_and_the_same_command_again(place: Path, unbroken: dict[str, str]) -> None:
    out = place / "killed"
    args = [sys.executable, *COMMAND, "--model", f"{place}/net.py:net", "--recipe",
            str(place / "adamw.yaml"), "--out", str(out)]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(args, env=env, stderr=subprocess.PIPE)
    assert process.stderr is not None
    deadline = time.monotonic() + 120
    while not (out / "train.jsonl").exists() and time.monotonic() < deadline:
        assert process.poll() is None or (out / "train.jsonl").exists(), process.stderr.read()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = subprocess.run([*args, "--json"], env=env, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["epochs"] == 3
    assert weights(Run(out)) == unbroken["adamw"]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *itertools.product(
            ["last.pt", "best.pt", "run.json", "train.jsonl", "done.json", "training_images.json"],
            ["truncated", "altered"],
        ),
        *((name, "lost") for name in ("last.pt", "best.pt", "run.json", "training_images.json")),
    ],
)
def test_a_damaged_file_is_named_and_made_again(
    place: Path, unbroken: dict[str, str], name: str, damage: str
) -> None:
    run = go(place, f"damaged-{name}-{damage}")
    path = run.path / name
    whole = path.read_bytes()
    middle = len(whole) // 2
    changed = bytes([whole[middle] ^ 1]) if damage == "altered" else b""
    path.write_bytes(whole[:middle] + changed + (whole[middle + 1 :] if changed else b""))
    if damage == "lost":
        path.unlink()
    said = Logged()
    run = go(place, f"damaged-{name}-{damage}", progress=said)
    assert weights(run) == unbroken["adamw"]
    assert len(run.history) == 3
    assert run.summary["epochs"] == 3
    assert any(name in line for line in said.lines), said.lines
    read_record_json(run.path / "run.json")
    assert read_training_images(run.path, "digits") is not None


def test_without_run_json_the_checkpoint_of_another_run_is_refused(place: Path) -> None:
    run = go(place, "nameless")
    (run.path / "run.json").unlink()
    with pytest.raises(UserError, match="is not a run"):
        go(place, "nameless", "sgd")
    assert run.checkpoint("best").is_file()


def test_a_kill_while_the_first_file_is_written_leaves_a_folder_to_train_in(place: Path) -> None:
    (place / "first").mkdir()
    (place / "first" / ".run.json.abc.part").write_text("half")
    run = go(place, "first")
    assert run.state == "done"
    assert not list(run.path.glob(".*"))


def test_a_second_training_waits_for_the_first(place: Path, unbroken: dict[str, str]) -> None:
    lock = FileLock(place / "twice.lock")
    assert lock.acquire()
    said = Logged()
    second = threading.Thread(target=go, args=(place, "twice", "adamw", said))
    second.start()
    deadline = time.monotonic() + 60
    while not said.lines and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "is locked by process" in said.lines[0]
    assert not (place / "twice").exists()
    lock.release()
    second.join()
    assert weights(Run(place / "twice")) == unbroken["adamw"]
    assert not lock.path.exists()


def test_the_best_checkpoint_stands_in_for_a_lost_last_one(place: Path) -> None:
    run = go(place, "lost")
    run.checkpoint("last").write_bytes(b"")
    state = load_resume_state(run, SilentProgress())
    assert state is not None
    assert state["epoch"] == load_checkpoint(run.checkpoint("best"))["epoch"]


@pytest.mark.parametrize("damage", ["lost", "truncated"])
def test_a_last_checkpoint_lost_after_the_best_final_epoch_is_written_again(
    place: Path, damage: str
) -> None:
    """Killed between the two files of its only epoch, a run can still be finished."""
    (place / "one.yaml").write_text(RECIPE.format(epochs=1, optimizer="adamw"))
    run = go(place, f"one-{damage}", "one")
    before, path = weights(run), run.checkpoint("last")
    (run.path / "done.json").unlink()
    path.unlink() if damage == "lost" else path.write_bytes(path.read_bytes()[:100])

    again = go(place, f"one-{damage}", "one")

    assert again.is_trained
    assert weights(again) == before


def test_the_output_of_another_run_is_refused(place: Path) -> None:
    go(place, "taken")
    with pytest.raises(UserError, match="a run with other settings"):
        go(place, "taken", "sgd")


def test_a_loss_that_is_not_finite_stops_with_a_reason(place: Path) -> None:
    recipe = (place / "sgd.yaml").read_text().replace("lr: 0.002", "lr: 1.0e+38")
    (place / "wild.yaml").write_text(recipe)
    with pytest.raises(RunError, match="not finite in epoch"):
        go(place, "wild", "wild")
    assert Run(place / "wild").state == "failed"


def test_checkpoints_notice_every_kind_of_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    save_checkpoint(path, {"model": {"w": torch.arange(1000.0)}, "epoch": 3})
    assert load_checkpoint(path)["epoch"] == 3
    whole = path.read_bytes()
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            content = load_checkpoint(path)
        except RunError:
            continue
        assert torch.equal(content["model"]["w"], torch.arange(1000.0))  # unused bytes of the zip


def test_a_disk_that_fills_up_within_a_checkpoint_is_an_error_of_the_disk(tmp_path: Path) -> None:
    """torch closes its archive after the error, which fails with another one."""
    resource = pytest.importorskip("resource")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            save_checkpoint(tmp_path / "a.pt", {"model": {"w": torch.zeros(100_000)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert caught.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir())


INTERRUPTED = """
import pathlib, sys
import torch
from buttress.models.loading.checkpoint import save_checkpoint

def interrupt(*args):
    raise KeyboardInterrupt

torch.serialization._open_zipfile_writer_buffer.__exit__ = interrupt
try:
    save_checkpoint(pathlib.Path(sys.argv[1]), {"model": {"w": torch.zeros(10)}})
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_within_a_checkpoint_is_an_interrupt(tmp_path: Path) -> None:
    """An archive that is left open writes its end when it is deleted, or aborts the process."""
    call = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "a.pt")]
    ended = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr
    assert not list(tmp_path.iterdir())
