"""At scale smoke every training learns, and different trainings give different weights."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from buttress.data import load_dataset
from buttress.models import load_model
from buttress.models.loading.checkpoint import content_digest, load_checkpoint
from buttress.results.run import Run
from buttress.studies import GridRun, RunJob, complete_run, expand_study, list_studies, load_study
from buttress.system.progress import SilentProgress
from buttress.training.cost import run_model_cost
from buttress.training.train import build_model


@cache
def smoke_runs() -> dict[str, GridRun]:
    """The runs of all bundled studies, by key."""
    studies = [expand_study(load_study(name), "smoke") for name in list_studies()]
    return {run.key: run for study in studies for run in study.runs}


def smallest_of_each_kind() -> set[str]:
    """Keys of one run per model family, objective and kind of initial weights."""
    kinds: dict[tuple[str, str, bool], str] = {}
    for key, run in sorted(
        smoke_runs().items(), key=lambda item: run_model_cost(item[1].spec).macs
    ):
        family = run.spec.model.split("_")[0]
        kinds.setdefault((family, run.spec.recipe.objective.name, run.init_key is None), key)
    return set(kinds.values())


KEYS = [
    pytest.param(key, marks=() if key in smallest_of_each_kind() else pytest.mark.slow)
    for key in smoke_runs()
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoke")


def train(key: str, folder: Path) -> Run:
    """Train a run, unless an earlier test has trained it."""
    run = smoke_runs()[key]
    init_folder = None if run.init_key is None else train(run.init_key, folder).path
    job = RunJob(run.spec, folder / key, init_folder=init_folder)
    return complete_run(job, device="cpu", progress=SilentProgress())


def clean_loss(model: torch.nn.Module, run: GridRun) -> float:
    """Clean loss on the training images, with batch statistics: running ones lag a few steps."""
    data = load_dataset(run.spec.dataset, "train", limit=run.spec.limit)
    torch.manual_seed(0)
    with torch.no_grad():
        return float(cross_entropy(model.train()(data.images), data.labels))


@pytest.mark.parametrize("key", KEYS)
def test_training_lowers_the_loss(key: str, folder: Path) -> None:
    run, trained = smoke_runs()[key], train(key, folder)
    if run.init_key is None:
        initial = build_model(run.spec)
    else:
        initial = load_model(folder / run.init_key, device="cpu")
    assert clean_loss(load_model(trained.path, device="cpu"), run) < clean_loss(initial, run)
    assert all(row["lr"] > 0 for row in trained.history)


@pytest.mark.parametrize("keys", [
    pytest.param(smallest_of_each_kind(), id="smallest"),
    pytest.param(set(smoke_runs()), id="all", marks=pytest.mark.slow),
])  # fmt: skip
def test_other_training_gives_other_weights(keys: set[str], folder: Path) -> None:
    """Of runs that start from the same weights on the same images."""
    digests = {
        key: content_digest(load_checkpoint(train(key, folder).checkpoint("last"))["model"])
        for key in keys
    }
    pairs = 0
    for one, other in combinations(sorted(keys), 2):
        first, second = smoke_runs()[one].spec, smoke_runs()[other].spec
        if first.model_copy(update={"recipe": second.recipe}) == second:
            assert digests[one] != digests[other], (first.recipe.name, second.recipe.name)
            pairs += 1
    assert pairs >= 10
