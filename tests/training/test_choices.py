"""What a recipe may ask of training beside its objective."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from buttress.data import load_dataset
from buttress.errors import UserError
from buttress.evaluation import evaluate
from buttress.models import load_model
from buttress.models.loading.checkpoint import content_digest, load_checkpoint
from buttress.results.run import SELECTED_ON_TEST_WARNING, Run
from buttress.training import OBJECTIVES, train
from buttress.training.objectives.core import example_args

MODEL = """
from torch import nn
def net(num_classes=10):
    return nn.Sequential(nn.Conv2d(3, 4, 5, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3),
                         nn.Flatten(), nn.Linear(4 * 49, num_classes))
"""
RECIPE = """
epochs: 3
batch_size: 32
objective: {{name: {objective}, args: {args}}}
threat: Linf:0.1
eps_warmup_epochs: 1
optimizer: {{name: adamw, lr: 0.002}}
augmentation:
  {{crop_padding: 2, horizontal_flip: true, rand_augment: {{}}, random_erasing: 0.5,
    mixup: 0.8, cutmix: 1.0}}
label_smoothing: 0.1
awp: {{gamma: 0.01, from_epoch: 1}}
weight_averaging: {{decay: 0.9}}
validation: {{attack: {{name: pgd, args: {{steps: 1}}}}, limit: 16}}
{more}
"""


class Stop(Exception):
    """Stands for a kill."""


class RecordingLogger:
    """Records its calls, and stops training after an epoch."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.events: list[Any] = []
        self.stop_after = stop_after

    def on_start(self, path: Path, spec: Mapping[str, Any]) -> None:
        self.events.append(spec["seed"])

    def on_epoch(self, row: Mapping[str, Any]) -> None:
        self.events.append(row["epoch"])
        if row["epoch"] == self.stop_after:
            raise Stop

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.events.append(summary["epochs"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choices")
    (folder / "net.py").write_text(MODEL)
    images = np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3), dtype=np.uint8)
    np.savez(folder / "more.npz", image=images, label=np.arange(50) % 10)
    for name in OBJECTIVES.names():
        needs_extra = OBJECTIVES.get(name).needs_extra_data
        more = f"extra_data: {{dataset: 'npz:{folder}/more.npz'}}" if needs_extra else ""
        text = RECIPE.format(objective=name, args=json.dumps(example_args(name)), more=more)
        (folder / f"{name}.yaml").write_text(text)
    return folder


def go(place: Path, out: str, recipe: str, **more: Any) -> Run:
    return train(f"{place}/net.py:net", "digits", place / f"{recipe}.yaml", place / out, limit=96,
                 device="cpu", **more)  # fmt: skip


@pytest.mark.parametrize("name", OBJECTIVES.names())
def test_every_objective_resumes_bit_for_bit_with_everything_on(place: Path, name: str) -> None:
    whole = go(place, f"{name}-whole", name)
    with pytest.raises(Stop):
        go(place, f"{name}-cut", name, loggers=[RecordingLogger(stop_after=2)])
    torch.manual_seed(99)  # nothing may depend on the global generator
    again = go(place, f"{name}-cut", name)
    states = [load_checkpoint(run.checkpoint("last")) for run in (whole, again)]
    a, b = (
        content_digest({k: s[k] for k in ("model", "raw", "optimizer", "memory")}) for s in states
    )
    assert a == b


def test_loggers_are_called_every_epoch(place: Path) -> None:
    logger = RecordingLogger()
    go(place, "logger", "standard", loggers=[logger])
    assert logger.events == [0, 1, 2, 3, 3]


def test_a_logger_that_is_not_installed_says_what_to_do(place: Path) -> None:
    from buttress.training.loggers import LOGGERS, create_logger

    for name in LOGGERS.names():
        if name != "epochs" and importlib.util.find_spec(name) is None:
            with pytest.raises(UserError, match="pip install"):
                create_logger(name).on_start(place, {"seed": 0})


def test_tensorboard_draws_the_numbers_of_an_epoch(tmp_path: Path) -> None:
    from buttress.training.loggers import create_logger

    logger = create_logger("tensorboard")
    logger.on_start(tmp_path, {"seed": 0})
    logger.on_epoch({"epoch": 1, "loss": 0.5, "val_robust": None, "best": True})
    logger.on_end({"epochs": 1})
    assert list((tmp_path / "tensorboard").iterdir())


def test_choosing_on_test_images_is_marked_wherever_a_number_comes_from_it(place: Path) -> None:
    run = go(place, "tested", "standard", overrides=("select_on=test",))
    assert run.summary["selected_on"] == "test"
    assert SELECTED_ON_TEST_WARNING in run.summary["warnings"]
    model, data = load_model(run.path), load_dataset("digits", "test", limit=8)
    evaluation = evaluate(model, data, ["clean"], out=run.suite_folder("clean"))
    assert SELECTED_ON_TEST_WARNING in evaluation.warnings
    assert SELECTED_ON_TEST_WARNING in evaluation.records["clean"].metadata["warnings"]
    honest = go(place, "validated", "standard")
    assert honest.summary["selected_on"] == "val"
    assert (
        SELECTED_ON_TEST_WARNING not in evaluate(load_model(honest.path), data, ["clean"]).warnings
    )


def test_an_objective_that_needs_more_images_says_so(place: Path) -> None:
    with pytest.raises(UserError, match=r"extra_data\.dataset"):
        go(place, "few", "rst", overrides=("extra_data=null",))


def test_the_best_epoch_by_clean_accuracy(place: Path) -> None:
    run = go(place, "by-clean", "pgd_at", overrides=("validation.select_by=clean",))
    best = max(run.history, key=lambda row: (row["val_clean"], row["val_robust"]))
    assert run.summary["best_val_clean"] == best["val_clean"]


def test_half_the_bits_in_passes(place: Path) -> None:
    run = go(place, "half", "trades", overrides=("precision=bf16-mixed",))
    state = load_checkpoint(run.checkpoint("last"))["model"]
    assert {v.dtype for v in state.values() if v.is_floating_point()} == {torch.float32}
    whole = Run(place / "trades-whole")
    if whole.state == "done":
        losses = [[row["loss"] for row in r.history] for r in (run, whole)]
        assert losses[0] == pytest.approx(losses[1], rel=0.05)
        assert losses[0] != losses[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_is_saved_under_its_own_names(place: Path) -> None:
    run = go(place, "compiled", "standard", compile=True)
    plain = go(place, "plain", "standard")
    states = [load_checkpoint(r.checkpoint("last"))["model"] for r in (run, plain)]
    assert states[0].keys() == states[1].keys()
    assert run.history[0]["loss"] == pytest.approx(plain.history[0]["loss"], rel=1e-2)
