"""Training a run: from names to a directory of files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from buttress.allocator import keep_freed_memory
from buttress.cores import usable_cores
from buttress.data import Dataset, facts_of, load_dataset
from buttress.data.mixed import Mixed
from buttress.errors import ButtressError, CorruptFile, UserError
from buttress.files import discard_leftovers
from buttress.models import MODELS, Classifier, create_model
from buttress.models.checkpoint import load_checkpoint, save_checkpoint, tree_digest
from buttress.progress import Progress, Silent
from buttress.records.run import CHOSEN_ON_TEST, DONE, WHICH, Run, Which, command_line
from buttress.records.spec import Recipe, RunSpec
from buttress.spec import digest
from buttress.statistics import Interval, wilson
from buttress.streams import seed_of
from buttress.training.batches import Batches
from buttress.training.guard import warnings_of
from buttress.training.logs import Heard, Listener
from buttress.training.loop import Trainer
from buttress.training.objectives import OBJECTIVES
from buttress.training.ranks import is_first, is_launched, make_fabric, ranks
from buttress.training.recipe import load_recipe
from buttress.training.sync import synchronise
from buttress.training.twin import laid_out


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
    devices: int = 1,
    compile: bool = False,
    listeners: Sequence[Listener] = (),
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
        devices: processes on this machine, each with its device; the numbers stay nearly the same.
        compile: compile the network with torch, which takes a minute and a compiler.
        listeners: who is told of each epoch.
        progress: where to show progress.
    """
    progress = progress or Silent()
    spec = resolve(
        model, dataset, load_recipe(recipe, changes), seed=seed, limit=limit, model_args=model_args
    )
    return train_run(
        spec, out, device=device, devices=devices, compile=compile, listeners=listeners,
        progress=progress,
    )  # fmt: skip


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
    data = facts_of(dataset)
    channels, height, _ = data.shape
    mean, std = {
        True: (data.mean, data.std),
        False: ((0.0,) * channels, (1.0,) * channels),
        "half": ((0.5,) * channels, (0.5,) * channels),
    }[recipe.normalise]
    fields = {
        "model": model,
        "model_args": dict(model_args or {}),
        "dataset": dataset,
        "limit": limit,
        "num_classes": data.num_classes,
        "image_size": height,
        "in_channels": channels,
        "mean": mean,
        "std": std,
        "recipe": recipe,
        "seed": seed,
    }
    return RunSpec.parse(fields, f"training {model}")


def build(spec: RunSpec) -> Classifier:
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


def train_run(  # noqa: PLR0913 - a run, and how it is to be run
    spec: RunSpec,
    out: str | Path,
    *,
    start: Mapping[str, Any] | None = None,
    finetuned_from: Mapping[str, Any] | None = None,
    device: str = "auto",
    devices: int = 1,
    compile: bool = False,
    listeners: Sequence[Listener] = (),
    progress: Progress | None = None,
) -> Run:
    """Trains what a spec says into a directory, from the weights ``start`` if they are given.

    ``finetuned_from`` says where these came from; the run keeps it and is the same run without it.
    """
    progress, run = progress or Silent(), Run(out)
    most = max(usable_cores(), torch.cuda.device_count(), 8)
    if not 1 <= devices <= most:
        raise UserError(f"`1 <= devices <= {most}` must hold here, but got devices={devices}")
    build(spec)  # a wrong name or size is an error before anything is written ...
    check_extra(spec)
    if not run.exists:
        load_dataset(spec.dataset, "train")  # ... and so are missing images
    if not is_first():
        return follow(run, spec, device, compile)
    run.open(spec, command_line(), category_of(spec.model), finetuned_from)
    if start is not None:
        keep_start(run, spec, start, progress)
    discard_leftovers(run.path)
    if is_finished(run, progress):
        return run
    state = last_good(run, progress)  # damaged files are gone before others read them
    if state is not None and not run.checkpoint("last").is_file():
        # Lost after the best epoch, which may be the final one: then no epoch would write it again.
        save_checkpoint(run.checkpoint("last"), state)
    began = time.perf_counter()
    heard = Heard(run, spec, listeners)
    try:
        with ranks(run.path, device, devices):
            take_part(run, spec, device, compile=compile, progress=progress, heard=heard)
    except (ButtressError, RuntimeError, OSError) as error:
        with contextlib.suppress(OSError):
            run.fail(f"{type(error).__name__}: {error}", run.path / DONE)
        raise
    run.finish(summary_of(run, spec, time.perf_counter() - began))
    heard.end()
    for warning in run.summary["warnings"]:
        progress.log(warning)
    if is_launched():
        distributed.barrier()  # those who follow return when the run is whole
    return run


def follow(run: Run, spec: RunSpec, device: str, compile: bool) -> Run:
    """What all processes but the first do where torchrun has started them: they write nothing."""
    if not is_finished(run, Silent()):
        take_part(run, spec, device, compile=compile)
        distributed.barrier()
    return run


def take_part(
    run: Run,
    spec: RunSpec,
    device: str,
    *,
    compile: bool = False,
    progress: Progress | None = None,
    heard: Heard | None = None,
) -> None:
    """Trains in this process, which may be one of several."""
    keep_freed_memory()
    fabric = make_fabric(device, int(os.environ.get("WORLD_SIZE", "1")), spec.recipe.precision)
    progress = progress or Silent()
    data, val = load_data(spec, progress)
    with torch.random.fork_rng():
        model: torch.nn.Module = build(spec)
        if spec.start is not None:
            model.load_state_dict(load_start(run, spec))
        if fabric.world_size > 1:
            model = synchronise(model, fabric.device.type == "cuda")
        trainer = Trainer(run, laid_out(model), spec, fabric, compile=compile)
        if (state := last_good(run, Silent())) is not None:
            trainer.restore(state)
        fabric.barrier()
        trainer.fit(data, val, progress, heard.epoch if heard else lambda row: None)


def load_data(spec: RunSpec, progress: Progress) -> tuple[Batches, Dataset]:
    """The training batches of a run, and the images that its best epoch is chosen by."""
    recipe, size = spec.recipe, spec.image_size
    part = "train" if recipe.select_on == "val" else "train+val"  # as those did who chose on test
    data = load_dataset(spec.dataset, part, limit=spec.limit, image_size=size, progress=progress)
    val = load_dataset(spec.dataset, recipe.select_on, limit=recipe.validation.limit,
                       image_size=size, progress=progress)  # fmt: skip
    mixed = None
    if recipe.extra is not None:
        more = load_dataset(recipe.extra.dataset, "train", image_size=size, progress=progress)
        mixed = Mixed(data, more, recipe.extra.share)
    return Batches(data, recipe.batch_size, spec.seed, mixed), val


def check_extra(spec: RunSpec) -> None:
    objective = OBJECTIVES.get(spec.recipe.objective.name)
    if objective.needs_extra and spec.recipe.extra is None:
        raise UserError(
            f"objective {spec.recipe.objective.name!r} needs more images, like "
            "--set extra.dataset=npz:PATH"
        )


def keep_start(run: Run, spec: RunSpec, start: Mapping[str, Any], progress: Progress) -> None:
    """Writes the weights that a run begins with, unless they are there and whole."""
    try:
        load_start(run, spec)
    except FileNotFoundError:
        save_checkpoint(run.checkpoint("start"), {"model": dict(start)})
    except CorruptFile as error:
        progress.log(f"{error}; writing it again")
        save_checkpoint(run.checkpoint("start"), {"model": dict(start)})


def load_start(run: Run, spec: RunSpec) -> dict[str, Any]:
    """The weights that a run begins with."""
    weights: dict[str, Any] = load_checkpoint(run.checkpoint("start"))["model"]
    is_named = (spec.start or "").startswith("run:")  # in a study, before they are known
    if not is_named and tree_digest(weights) != spec.start:
        raise CorruptFile(f"{run.checkpoint('start')} holds other weights than the run began with")
    return weights


def summary_of(run: Run, spec: RunSpec, seconds: float) -> dict[str, Any]:
    """How a run ended: what ``done.json`` holds."""
    rows = run.history
    best = next(row for row in reversed(rows) if row["best"])
    last = next(row for row in reversed(rows) if row["val_clean"] is not None)
    events = load_checkpoint(run.checkpoint("last")).get("events", [])
    warnings = warnings_of(rows, spec.num_classes)
    if spec.recipe.select_on == "test":
        warnings.append(CHOSEN_ON_TEST)
    return {
        "epochs": rows[-1]["epoch"],
        "best_epoch": best["epoch"],
        "best_val_clean": best["val_clean"],
        "best_val_robust": best["val_robust"],
        "best_val_clean_interval": val_interval(best, "val_clean"),
        "best_val_robust_interval": val_interval(best, "val_robust"),
        "val_images": best.get("val_images"),
        "last_val_clean": last["val_clean"],
        "last_val_robust": last["val_robust"],
        "selected_on": spec.recipe.select_on,
        "events": events,
        "warnings": warnings,
        "seconds": round(sum(row["seconds"] for row in rows), 3),
        "seconds_here": round(seconds, 3),
    }


def val_interval(row: Mapping[str, Any], key: str) -> Interval | None:
    """The 95% interval of a validation accuracy; None where there is none, or no count."""
    share, images = row.get(key), row.get("val_images")
    if share is None or not images:
        return None
    return wilson(round(share * images), images)


# What commands read of a run that is done.
SAID = {"best_epoch", "best_val_clean", "best_val_robust", "last_val_robust", "selected_on",
        "warnings", "seconds"}  # fmt: skip


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
    if not run.is_trained:
        return False
    try:
        summary, epochs = run.summary, run.history
        whole = len(epochs) == summary.get("epochs") and summary.keys() >= SAID
        for which in WHICH:
            _of_this_run(run, which, load_checkpoint(run.checkpoint(which)))
    except (CorruptFile, FileNotFoundError) as error:
        progress.log(f"{error}; doing it again")
        whole = False
    if not whole:
        (run.path / DONE).unlink(missing_ok=True)
    return whole


def category_of(model: str) -> str:
    """cnn, transformer or hybrid for a registered model; empty for others."""
    tags = MODELS.entry(model).tags if model in MODELS else ()
    return next((t for t in ("cnn", "transformer", "hybrid") if t in tags), "")
