"""The step benchmark: trainers in processes of their own, in turns, and the table."""

from __future__ import annotations

import pytest
import torch

from buttress.bench import training_steps
from buttress.bench.training import training_tables
from buttress.cli.main import run_cli
from buttress.errors import RunError
from buttress.system.progress import SilentProgress
from buttress.training.recipe import load_recipe
from buttress.training.train import resolve_run_spec


@pytest.fixture
def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_steps, "STEPS_PER_SLICE", 1)


@pytest.mark.usefixtures("one_step")
@pytest.mark.parametrize("name", training_steps.STEP_TRAINERS.names())
def test_every_trainer_runs_a_slice(name: str) -> None:
    spec = resolve_run_spec("resnet_tiny", "digits", load_recipe(training_steps.RECIPE))
    data = training_steps.random_data(spec)
    assert len(data) == spec.recipe.batch_size
    run_slice = training_steps.STEP_TRAINERS.get(name)(spec, data)
    run_slice()


def test_the_plain_loop_crops_and_mirrors_whole_images() -> None:
    x = torch.arange(1.0, 6 * 6 + 1).view(1, 1, 6, 6).repeat(64, 1, 1, 1)
    augmented = training_steps._augment(x, torch.Generator().manual_seed(0))
    assert augmented.shape == x.shape
    steps = augmented.diff(dim=3)[augmented[..., 1:].ne(0) & augmented[..., :-1].ne(0)]
    assert set(steps.tolist()) == {-1.0, 1.0}, "rows run forwards, or backwards if mirrored"


def test_the_table_compares_with_the_better_loop() -> None:
    times = {"buttress": 0.06, "floor": 0.05, "plain loop": 0.2, "plain loop, channels-last": 0.1}
    rows = [{"trainer": n, "model": "m", "step_seconds": t} for n, t in times.items()]
    assert list(training_tables(rows))[-1].endswith("| 0.60 | 0.50 |")


@pytest.mark.slow
@pytest.mark.usefixtures("one_step")
def test_trainers_take_turns_in_processes_of_their_own() -> None:
    settings = training_steps.StepRun(model="resnet_tiny", data="digits")
    rows = training_steps.run_steps(settings, 1, SilentProgress())
    assert [row["trainer"] for row in rows] == training_steps.STEP_TRAINERS.names()
    assert all(row["step_seconds"] > 0 for row in rows)


@pytest.mark.slow
def test_a_step_trainer_that_fails_says_why() -> None:
    process = training_steps.SliceProcess(training_steps.StepRun(model="no_model"))
    try:
        with pytest.raises(RunError, match="no_model"):
            process.run_slice()
    finally:
        process.close()


def test_unknown_training_cases_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["bench", "training", "--cases", "steps,speed"]) == 2
    assert "cases must be of steps, epochs, but got speed" in capsys.readouterr().err
