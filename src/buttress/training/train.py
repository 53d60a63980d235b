"""Training a run: from names to a directory of files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from buttress.data import Dataset, load_dataset
from buttress.errors import ButtressError, CorruptFile
from buttress.files import discard_leftovers
from buttress.models import MODELS, create_model
from buttress.models.checkpoint import load_checkpoint
from buttress.progress import Progress, Silent
from buttress.records.run import WHICH, Run, Which, command_line
from buttress.records.spec import Recipe, RunSpec
from buttress.spec import digest
from buttress.streams import seed_of
from buttress.training.loop import Trainer
from buttress.training.recipe import load_recipe


def train(  # noqa: PLR0913 - the public call; what it takes is what a run is
    model: str,
    dataset: str,
    recipe: str | Path | Recipe,
    out: str | Path,
    *,
    seed: int = 0,
    limit: int | None = None,
    model_args: Mapping[str, Any] | None = None,
    changes: tuple[str, ...] = (),
    device: str = "auto",
    progress: Progress | None = None,
) -> Run:
    """Trains a model, or goes on where an earlier call stopped; a finished run returns at once.

    Args:
        model: a registered name, ``timm:NAME`` or ``file.py:function``.
        dataset: a data set's name or ``folder:PATH``.
        recipe: a recipe's name, a YAML file, or a `Recipe`.
        out: the run's directory.
        seed: decides weights, order, augmentation and attack noise.
        limit: train on the first images only.
        model_args: further arguments of the model.
        changes: ``key=value`` changes of the recipe.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        progress: where to show progress.
    """
    progress = progress or Silent()
    spec = resolve(
        model, dataset, load_recipe(recipe, changes), seed=seed, limit=limit, model_args=model_args
    )
    return train_run(spec, out, device=device, progress=progress)


def resolve(
    model: str,
    dataset: str,
    recipe: Recipe,
    *,
    seed: int = 0,
    limit: int | None = None,
    model_args: Mapping[str, Any] | None = None,
) -> RunSpec:
    """Everything that decides a run's numbers, from the names of its parts."""
    data = load_dataset(dataset, "train")
    channels, height, _ = data.shape
    none = ((0.0,) * channels, (1.0,) * channels)
    mean, std = (data.mean, data.std) if recipe.normalise else none
    return RunSpec(
        model=model,
        model_args=dict(model_args or {}),
        dataset=dataset,
        limit=limit,
        num_classes=data.num_classes,
        image_size=height,
        in_channels=channels,
        mean=mean,
        std=std,
        recipe=recipe,
        seed=seed,
    )


def build(spec: RunSpec) -> torch.nn.Module:
    """The network of a run with its initial weights."""
    return create_model(
        spec.model,
        num_classes=spec.num_classes,
        image_size=spec.image_size,
        in_channels=spec.in_channels,
        mean=spec.mean,
        std=spec.std,
        options=spec.model_args,
        seed=seed_of(spec.seed, "weights") % 2**63,
    )


def train_run(
    spec: RunSpec, out: str | Path, *, device: str = "auto", progress: Progress | None = None
) -> Run:
    """Trains what a spec says into a directory."""
    progress, run = progress or Silent(), Run(out)
    model = build(spec)  # a wrong name or size is an error before anything is written
    train_set = load_dataset(spec.dataset, "train", limit=spec.limit)
    val_set = load_dataset(spec.dataset, "val", limit=spec.recipe.validation.limit)
    run.open(spec, command_line(), category=category_of(spec.model))
    discard_leftovers(run.path)
    if is_finished(run, progress):
        return run
    started = time.perf_counter()
    try:
        _fit(run, model, spec, (train_set, val_set), device, progress)
    except (ButtressError, RuntimeError, OSError) as error:
        with contextlib.suppress(OSError):
            run.fail(f"{type(error).__name__}: {error}")
        raise
    last = run.history[-1]
    best = next(row for row in reversed(run.history) if row["best"])
    run.finish(
        {
            "epochs": last["epoch"],
            "best_epoch": best["epoch"],
            "best_val_clean": best["val_clean"],
            "best_val_robust": best["val_robust"],
            "seconds": round(sum(row["seconds"] for row in run.history), 3),
            "seconds_here": round(time.perf_counter() - started, 3),
        }
    )
    return run


def _fit(
    run: Run,
    model: torch.nn.Module,
    spec: RunSpec,
    data: tuple[Dataset, Dataset],
    device: str,
    progress: Progress,
) -> None:
    fabric = Fabric(accelerator=device, devices=1, precision=spec.recipe.precision)
    with torch.random.fork_rng():
        trainer = Trainer(run, model, spec, fabric)
        if (state := last_good(run, progress)) is not None:
            trainer.restore(state)
        trainer.fit(*data, progress)


def last_good(run: Run, progress: Progress) -> dict[str, Any] | None:
    """The state to go on from; a damaged checkpoint is named and what it held is done again."""
    states: dict[Which, dict[str, Any] | None] = {}
    for which in WHICH:
        try:
            states[which] = load_checkpoint(run.checkpoint(which))
            _of_this_run(run, which, states[which])
        except FileNotFoundError:
            states[which] = None
        except CorruptFile as error:
            progress.log(f"{error}; training that part again")
            run.checkpoint(which).unlink()
            states[which] = None
    best, last = states["best"], states["last"]
    if last is not None and (best is None or best["epoch"] < last["best_epoch"]):
        return None  # the best weights are lost and only training again brings them back
    return last or best


def _of_this_run(run: Run, which: Which, state: dict[str, Any] | None) -> None:
    if state is not None and state.get("spec") != digest(run.spec.identity()):
        raise CorruptFile(f"{run.checkpoint(which)} belongs to another run")


def is_finished(run: Run, progress: Progress) -> bool:
    """Whether a run is complete; files that belong to it are opened, not only counted."""
    if run.state != "done":
        return False
    try:
        summary, epochs = run.summary, run.history
        whole = len(epochs) == summary["epochs"]
        for which in WHICH:
            _of_this_run(run, which, load_checkpoint(run.checkpoint(which)))
    except (CorruptFile, FileNotFoundError) as error:
        progress.log(f"{error}; doing it again")
        whole = False
    if not whole:
        (run.path / "done.json").unlink(missing_ok=True)
    return whole


def category_of(model: str) -> str:
    """cnn, transformer or hybrid for a registered model; empty for others."""
    tags = MODELS.entry(model).tags if model in MODELS else ()
    return next((t for t in ("cnn", "transformer", "hybrid") if t in tags), "")
