"""Training of a run: from a model, dataset and recipe to a run directory."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from buttress.data import dataset_facts, load_dataset
from buttress.errors import ButtressError, CorruptFileError, UserError
from buttress.models import MODELS, Classifier, create_model
from buttress.models.core import find_model, is_known
from buttress.models.loading.checkpoint import content_digest, load_checkpoint, save_checkpoint
from buttress.models.memory_format import use_channels_last
from buttress.models.sync_batchnorm import convert_sync_batchnorm
from buttress.results.model_code import is_function_name, read_model_code
from buttress.results.run import (
    CHECKPOINT_NAMES,
    DONE_FILE,
    SELECTED_ON_TEST_WARNING,
    CheckpointName,
    Run,
    command_line,
)
from buttress.results.run_spec import Recipe, RunSpec
from buttress.results.training_images import read_training_images
from buttress.statistics import Interval, wilson_interval
from buttress.system.cpu import available_cpus, disable_malloc_trim
from buttress.system.files import atomic_write, digest
from buttress.system.locks import lock_folder
from buttress.system.memory import peak_memory_mb
from buttress.system.progress import Progress, SilentProgress
from buttress.system.rng import derive_seed
from buttress.system.signatures import explain_arguments
from buttress.training.distributed import (
    create_fabric,
    devices_warning,
    is_distributed_process,
    is_rank_zero,
    worker_processes,
)
from buttress.training.guards import training_warnings
from buttress.training.loggers import EpochLogger, LoggerGroup
from buttress.training.loop import Trainer
from buttress.training.recipe import load_recipe
from buttress.training.training_data import (
    check_extra_data,
    load_training_data,
    record_training_images,
    restore_training_images,
)

# Settings of a recipe that users expect as arguments.
RECIPE_HINTS = {
    name: f"it is a setting of the recipe; pass overrides=('{key}=...',)"
    for name, key in {
        "epochs": "epochs", "lr": "optimizer.lr", "learning_rate": "optimizer.lr",
        "batch_size": "batch_size", "weight_decay": "optimizer.weight_decay", "eps": "threat",
        "epsilon": "threat", "threat": "threat", "optimizer": "optimizer.name",
        "objective": "objective", "loss": "objective",
    }.items()
}  # fmt: skip


@explain_arguments(
    "bt.train('resnet_tiny', 'digits', 'quickstart-at', out='runs/first')", RECIPE_HINTS
)
def train(  # noqa: PLR0913 - the public call; what it takes is what a run is
    model: str,
    dataset: str,
    recipe: str | Path | Recipe,
    out: str | Path,
    *,
    seed: int = 0,
    limit: int | None = None,
    image_size: int | None = None,
    model_args: Mapping[str, Any] | None = None,
    overrides: tuple[str, ...] = (),
    device: str = "auto",
    devices: int = 1,
    compile: bool = False,
    loggers: Sequence[EpochLogger] = (),
    progress: Progress | None = None,
) -> Run:
    """Train a model, or resume an interrupted run; a finished run is returned at once.

    Args:
        model: a registered name, ``timm:NAME`` or ``file.py:function``.
        dataset: a dataset's name or ``folder:PATH``.
        recipe: a recipe's name, a YAML file, or a `Recipe`.
        out: the run's directory.
        seed: seed of weights, order, augmentation and attack noise.
        limit: train on the first images only.
        image_size: resize images to this height and width, in training and in every evaluation.
        model_args: further arguments of the model.
        overrides: ``key=value`` changes of the recipe.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        devices: processes on this machine, each with its device; the numbers stay nearly the same.
            On a CPU it is slower for models with BatchNorm.
        compile: compile the model with torch, which takes a minute and a compiler.
        loggers: called after each epoch.
        progress: where to show progress.
    """
    progress = progress or SilentProgress()
    check_names(model=model, dataset=dataset)
    spec = resolve_run_spec(
        model,
        dataset,
        load_recipe(recipe, overrides),
        seed=seed,
        limit=limit,
        image_size=image_size,
        model_args=model_args,
    )
    if image_size is not None and is_rank_zero():
        progress.log(describe_image_size(spec))
    return train_run(
        spec, out, device=device, devices=devices, compile=compile, loggers=loggers,
        progress=progress,
    )  # fmt: skip


def check_names(**named: object) -> None:
    """Raise on a model or dataset that is an object: a run must be able to name what it is of."""
    forms = {
        "model": "a registered name, timm:NAME, or file.py:function for a model of your own",
        "dataset": "a name, folder:PATH or npz:PATH",
    }
    for argument, value in named.items():
        if not isinstance(value, str):
            raise UserError(
                f"`{argument}` must be {forms[argument]}, but got {type(value).__name__}; a run "
                "keeps names, so that it can be resumed and repeated"
            )


def resolve_run_spec(
    model: str,
    dataset: str,
    recipe: Recipe,
    *,
    seed: int = 0,
    limit: int | None = None,
    image_size: int | None = None,
    model_args: Mapping[str, Any] | None = None,
) -> RunSpec:
    """Resolve the names of model, dataset and recipe to a `RunSpec`."""
    data = dataset_facts(dataset, image_size)
    channels, height, _ = data.shape
    mean, std = {
        True: (data.mean, data.std),
        False: ((0.0,) * channels, (1.0,) * channels),
        "half": ((0.5,) * channels, (0.5,) * channels),
    }[recipe.normalize]
    fields = {
        "model": model,
        "model_sha256": read_model_code(model).sha256 if is_function_name(model) else None,
        "model_args": _without_defaults(model, model_args or {}),
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


def _without_defaults(model: str, model_args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that differ from the model's defaults: the same model has one key, said or not."""
    parameters = inspect.signature(find_model(model).value).parameters if is_known(model) else {}
    return {
        name: value
        for name, value in model_args.items()
        if name not in parameters or parameters[name].default != value
    }


def describe_image_size(spec: RunSpec) -> str:
    """Say at which size the model of a run sees its images."""
    size = f"{spec.image_size}x{spec.image_size}"
    return f"images of {spec.dataset} have {size} pixels; {spec.model_name} is built for that size"


def build_model(spec: RunSpec) -> Classifier:
    """Build the model of a run with its initial weights."""
    return create_model(
        spec.model,
        num_classes=spec.num_classes,
        image_size=spec.image_size,
        in_channels=spec.in_channels,
        mean=spec.mean,
        std=spec.std,
        options=spec.model_args,
        seed=derive_seed(spec.seed, "weights") % 2**63,
    )


def train_run(  # noqa: PLR0913 - a run, and how it is to be run
    spec: RunSpec,
    out: str | Path,
    *,
    initial_state: Mapping[str, Any] | None = None,
    finetuned_from: Mapping[str, Any] | None = None,
    device: str = "auto",
    devices: int = 1,
    compile: bool = False,
    loggers: Sequence[EpochLogger] = (),
    progress: Progress | None = None,
) -> Run:
    """Train the run of a spec in a directory, from the weights ``initial_state`` if given.

    ``finetuned_from`` records their source; it is not part of the run's identity.
    """
    progress, run = progress or SilentProgress(), Run(out)
    max_devices = max(available_cpus(), torch.cuda.device_count(), 8)
    if not 1 <= devices <= max_devices:
        raise UserError(
            f"`1 <= devices <= {max_devices}` must hold on this machine, but got devices={devices}"
        )
    model = build_model(spec)  # a wrong name or size is an error before anything is written ...
    check_extra_data(spec)
    if not run.exists:
        # ... and so are missing images
        load_dataset(spec.dataset, "train", image_size=spec.image_size)
    if not is_rank_zero():
        return train_as_worker(run, spec, device, compile)
    with lock_folder(run.path, progress) as progress:
        if (warning := devices_warning(model, device, devices)) is not None:
            progress.log(warning)
        category = model_category(spec.model)
        has_checkpoint = not run.exists and has_checkpoint_of(run, spec)
        run.open(spec, command_line(), category, finetuned_from, progress, has_checkpoint)
        if initial_state is not None:
            save_initial_weights(run, spec, initial_state, progress)
        if is_finished(run, progress):
            restore_training_images(run, spec, progress)
        else:
            group = LoggerGroup(run, spec, loggers)
            train_locked_run(run, spec, device, devices, compile, group, progress)
    return run


def train_locked_run(
    run: Run,
    spec: RunSpec,
    device: str,
    devices: int,
    compile: bool,
    logger_group: LoggerGroup,
    progress: Progress,
) -> None:
    """Train or resume a run whose folder this process has locked, and write its summary."""
    state = load_resume_state(run, progress)  # damaged files are gone before others read them
    if state is not None and not run.checkpoint("last").is_file():
        # Lost after the best epoch, which may be the final one: then no epoch would write it again.
        with atomic_write(run.checkpoint("last")) as temporary:
            shutil.copyfile(run.checkpoint("best"), temporary)
    started = time.perf_counter()
    try:
        with worker_processes(run.path, device, devices):
            train_in_process(
                run, spec, device, compile=compile, progress=progress, logger_group=logger_group
            )
    except (ButtressError, RuntimeError, OSError) as error:
        with contextlib.suppress(OSError):
            run.fail(f"{type(error).__name__}: {error}", run.path / DONE_FILE)
        raise
    summary = summarize_run(run, spec, time.perf_counter() - started)
    run.finish({**summary, "compiled": compile})
    logger_group.on_end()
    for warning in run.summary["warnings"]:
        progress.log(warning)
    if is_distributed_process():
        distributed.barrier()  # workers return when the run is complete


def train_as_worker(run: Run, spec: RunSpec, device: str, compile: bool) -> Run:
    """Train as a worker started by torchrun (rank > 0), which writes no files."""
    if not is_finished(run, SilentProgress()):
        train_in_process(run, spec, device, compile=compile)
        distributed.barrier()
    return run


def train_in_process(
    run: Run,
    spec: RunSpec,
    device: str,
    *,
    compile: bool = False,
    progress: Progress | None = None,
    logger_group: LoggerGroup | None = None,
) -> None:
    """Train in this process, which may be one of several."""
    disable_malloc_trim()
    fabric = create_fabric(device, int(os.environ.get("WORLD_SIZE", "1")), spec.recipe.precision)
    progress = progress or SilentProgress()
    sampler, val_data = load_training_data(spec, progress)
    if is_rank_zero():
        record_training_images(run, sampler, val_data)
    with torch.random.fork_rng():
        model: torch.nn.Module = build_model(spec)
        if spec.initial_weights is not None:
            model.load_state_dict(load_initial_checkpoint(run, spec))
        if fabric.world_size > 1:
            model = convert_sync_batchnorm(model, fabric.device.type == "cuda")
        trainer = Trainer(run, use_channels_last(model), spec, fabric, compile=compile)
        if (state := load_resume_state(run, SilentProgress())) is not None:
            trainer.load_state(state)
        fabric.barrier()
        trainer.fit(
            sampler, val_data, progress, logger_group.on_epoch if logger_group else lambda row: None
        )


def save_initial_weights(
    run: Run, spec: RunSpec, initial_state: Mapping[str, Any], progress: Progress
) -> None:
    """Save the initial weights of a run, unless the file exists and is intact."""
    try:
        load_initial_checkpoint(run, spec)
    except FileNotFoundError:
        save_checkpoint(run.checkpoint("initial"), {"model": dict(initial_state)})
    except CorruptFileError as error:
        progress.log(f"{error}; writing it again")
        save_checkpoint(run.checkpoint("initial"), {"model": dict(initial_state)})


def load_initial_checkpoint(run: Run, spec: RunSpec) -> dict[str, Any]:
    """Load the initial weights of a run."""
    weights: dict[str, Any] = load_checkpoint(run.checkpoint("initial"))["model"]
    is_named = (spec.initial_weights or "").startswith("run:")  # in a study, before they are known
    if not is_named and content_digest(weights) != spec.initial_weights:
        raise CorruptFileError(
            f"{run.checkpoint('initial')} does not contain the weights this run started from"
        )
    return weights


def summarize_run(run: Run, spec: RunSpec, seconds: float) -> dict[str, Any]:
    """Summarize a finished run for ``done.json``."""
    rows = run.history
    best = next(row for row in reversed(rows) if row["best"])
    last = next(row for row in reversed(rows) if row["val_clean"] is not None)
    events = load_checkpoint(run.checkpoint("last")).get("events", [])
    warnings = training_warnings(rows, spec.num_classes)
    if spec.recipe.select_on == "test":
        warnings.append(SELECTED_ON_TEST_WARNING)
    images = read_training_images(run.path, spec.dataset)
    if images is not None and images.copies_in_validation:
        warnings.append(
            f"{images.copies_in_validation} validation images are training images too, so "
            "validation accuracy is optimistic and selects the wrong checkpoint; remove them"
        )
    return {
        "epochs": rows[-1]["epoch"],
        "best_epoch": best["epoch"],
        "best_val_clean": best["val_clean"],
        "best_val_robust": best["val_robust"],
        "best_val_clean_interval": accuracy_interval(best, "val_clean"),
        "best_val_robust_interval": accuracy_interval(best, "val_robust"),
        "val_images": best.get("val_images"),
        "last_val_clean": last["val_clean"],
        "last_val_robust": last["val_robust"],
        "selected_on": spec.recipe.select_on,
        "events": events,
        "warnings": warnings,
        "seconds": round(sum(row["seconds"] for row in rows), 3),
        "seconds_here": round(seconds, 3),
        "peak_memory_mb": peak_memory_mb(),
    }


def accuracy_interval(metrics: Mapping[str, Any], key: str) -> Interval | None:
    """The 95% interval of a validation accuracy; None where there is none, or no count."""
    accuracy, images = metrics.get(key), metrics.get("val_images")
    if accuracy is None or not images:
        return None
    return wilson_interval(round(accuracy * images), images)


# Keys of done.json that commands read.
SUMMARY_KEYS = {
    "best_epoch", "best_val_clean", "best_val_robust", "last_val_robust", "selected_on", "warnings",
    "seconds",
}  # fmt: skip


def load_resume_state(run: Run, progress: Progress) -> dict[str, Any] | None:
    """Load the state to resume from; a damaged checkpoint is reported and retrained."""
    states: dict[CheckpointName, dict[str, Any] | None] = {}
    for name in CHECKPOINT_NAMES:
        try:
            states[name] = load_checkpoint(run.checkpoint(name))
            _check_checkpoint_owner(run, name, states[name])
        except FileNotFoundError:
            states[name] = None
        except CorruptFileError as error:
            progress.log(f"{error}; training again from the last intact checkpoint")
            run.checkpoint(name).unlink()
            states[name] = None
    best, last = states["best"], states["last"]
    if last is not None and (best is None or best["epoch"] < last["best_epoch"]):
        return None  # the best weights are lost and only training again brings them back
    return last or best


def _check_checkpoint_owner(run: Run, name: CheckpointName, state: dict[str, Any] | None) -> None:
    if state is not None and state.get("spec") != digest(run.spec.identity()):
        raise CorruptFileError(f"{run.checkpoint(name)} belongs to another run")


def has_checkpoint_of(run: Run, spec: RunSpec) -> bool:
    """Whether a folder has an intact checkpoint of this spec."""
    for name in CHECKPOINT_NAMES:
        with contextlib.suppress(CorruptFileError, OSError):
            if load_checkpoint(run.checkpoint(name)).get("spec") == digest(spec.identity()):
                return True
    return False


def is_finished(run: Run, progress: Progress) -> bool:
    """Whether a run is complete; its files are opened and verified."""
    if not run.is_trained:
        return False
    try:
        summary, epochs = run.summary, run.history
        is_complete = len(epochs) == summary.get("epochs") and summary.keys() >= SUMMARY_KEYS
        for name in CHECKPOINT_NAMES:
            _check_checkpoint_owner(run, name, load_checkpoint(run.checkpoint(name)))
    except (CorruptFileError, FileNotFoundError) as error:
        reason = f"{error.filename} is missing" if isinstance(error, FileNotFoundError) else error
        progress.log(f"{reason}; recomputing")
        is_complete = False
    if not is_complete:
        (run.path / DONE_FILE).unlink(missing_ok=True)
    return is_complete


def model_category(model: str) -> str:
    """cnn, transformer or hybrid for a registered model; empty for others."""
    tags = MODELS.entry(model).tags if model in MODELS else ()
    return next((t for t in ("cnn", "transformer", "hybrid") if t in tags), "")
