"""Failures of training are detected, reported and, with `on_collapse: rollback`, undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from buttress.data import load_dataset
from buttress.errors import RunError
from buttress.evaluation import evaluate
from buttress.models import load_model
from buttress.models.loading.checkpoint import content_digest, load_checkpoint
from buttress.results.run import Run
from buttress.system.progress import SilentProgress
from buttress.training import loop
from buttress.training.guards import has_collapsed, has_diverged, training_warnings
from collapsing import go


def rows(*pairs: tuple[float, float | None]) -> list[dict[str, Any]]:
    """Epochs with their accuracy under the training attack and under the validation attack."""
    return [{"train_accuracy": a, "val_robust": b, "val_clean": b, "loss": 1.0} for a, b in pairs]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (rows((0.3, 0.3), (0.4, 0.35), (0.8, 0.02)), True),
        (rows((0.3, 0.3), (0.4, 0.35), (0.2, 0.02)), False),  # everything fell: no deception
        (rows((0.3, 0.3), (0.4, 0.35), (0.8, 0.30)), False),  # robust overfitting, not a collapse
        (rows((0.3, 0.06), (0.8, 0.01)), False),  # chance explains it
        (rows((0.3, 0.4), (0.8, None)), False),  # nobody looked
        (rows((0.8, 0.01)), False),
    ],
)
def test_a_collapse_is_told_from_other_falls(history: list[dict[str, Any]], expected: bool) -> None:
    assert has_collapsed(history) is expected


def test_a_diverging_loss_is_far_above_that_of_the_first_epoch() -> None:
    assert has_diverged(rows((0.3, 0.3)), 4.1)
    assert not has_diverged(rows((0.3, 0.3)), 3.9)
    assert not has_diverged([], 100.0)


def test_a_model_that_guesses_is_said_to_have_failed() -> None:
    assert "training failed" in training_warnings(rows((0.1, 0.1), (0.1, 0.14)), 10)[0]
    assert training_warnings(rows((0.1, 0.1), (0.1, 0.16)), 10) == []
    assert training_warnings(rows((0.5, 0.5), (0.5, 0.6)), 2) == []


class Logged(SilentProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.slow
def test_a_real_collapse_is_seen_and_a_rollback_rescues_the_run(tmp_path: Path) -> None:
    """One-step training at a large eps learns to deceive its attack; two steps do not."""
    left = go(tmp_path, "warned", "warn", 40)
    assert left.summary["last_val_robust"] < 0.06
    assert left.history[-1]["train_accuracy"] > 0.8, "its own attack looks beaten"
    assert any("catastrophic overfitting" in w for w in left.summary["warnings"])
    progress = Logged()
    back = go(tmp_path, "rescued", "rollback", 40, progress=progress)
    assert [event["kind"] for event in back.summary["events"]] == ["rollback"]
    assert any("restored epoch" in line for line in progress.lines)
    assert back.summary["last_val_robust"] > 0.15
    assert back.summary["warnings"] == []
    with pytest.raises(RunError, match="best checkpoint is kept"):
        go(tmp_path, "stopped", "stop", 40)
    assert Run(tmp_path / "stopped").state == "failed"
    assert (tmp_path / "stopped" / "best.pt").is_file()


class Stop(Exception):
    """Stands for a kill."""


def test_after_a_rollback_training_goes_on_from_the_best_epoch_and_survives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallen: list[int] = []

    def once(history: list[dict[str, Any]]) -> bool:
        """The third epoch collapses, the first time."""
        falls = len(history) == 3 and not fallen
        fallen.extend([3] if falls else [])
        return falls

    monkeypatch.setattr(loop, "has_collapsed", once)
    whole = go(tmp_path, "whole", "rollback", 4)
    assert whole.summary["events"] == [{"kind": "rollback", "epoch": 3, "to": fallen_to(whole)}]
    assert [row["epoch"] for row in whole.history] == [1, 2, 3, 4]
    state = load_checkpoint(whole.checkpoint("last"))

    fallen.clear()
    real = loop.Trainer._save_checkpoint

    def killed(trainer: loop.Trainer, which: Any) -> None:
        real(trainer, which)
        if trainer.state.num_rollbacks:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_save_checkpoint", killed)
        with pytest.raises(Stop):
            go(tmp_path, "killed", "rollback", 4)
    again = go(tmp_path, "killed", "rollback", 4)
    assert content_digest(load_checkpoint(again.checkpoint("last"))["model"]) == content_digest(
        state["model"]
    )


def fallen_to(run: Run) -> int:
    """The best of the first two epochs, to which the run went back."""
    return max(run.history[:2], key=lambda row: (row["val_robust"], row["val_clean"]))["epoch"]


def test_a_failed_model_says_so_where_it_is_used(tmp_path: Path) -> None:
    run = go(tmp_path, "failed", "warn", 1, overrides=("optimizer.lr=1e-12",))
    assert run.summary["warnings"][0].startswith("training failed")
    evaluation = evaluate(load_model(run.path), load_dataset("digits", "test", limit=8), ["clean"])
    assert run.summary["warnings"][0] in evaluation.warnings
