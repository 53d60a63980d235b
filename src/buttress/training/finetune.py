"""Fine-tuning: a run that starts from the weights of another run or of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from buttress.errors import UserError
from buttress.models.core import create_model
from buttress.models.factory import Shape
from buttress.models.loading.checkpoint import content_digest
from buttress.models.loading.core import DEFAULT_SHAPE, ModelRequest, find_source
from buttress.models.loading.load import load_trained_weights
from buttress.models.loading.run import load_run_spec, read_run_checkpoint
from buttress.models.loading.transfer import TransferReport, describe_changes, transfer_weights
from buttress.models.loading.weight_file import CheckpointSource
from buttress.results.run import CHECKPOINT_NAMES, CheckpointName, Run
from buttress.results.run_spec import Recipe, RunSpec
from buttress.system.progress import Progress
from buttress.system.signatures import explain_arguments
from buttress.training.distributed import is_rank_zero
from buttress.training.loggers import EpochLogger
from buttress.training.recipe import load_recipe
from buttress.training.train import (
    RECIPE_HINTS,
    build_model,
    check_names,
    describe_image_size,
    resolve_run_spec,
    train_run,
)


class InitialWeights(NamedTuple):
    """Trained weights, and what is known about them."""

    weights: dict[str, Tensor]
    model: str
    provenance: dict[str, Any]  # for the header of the new run
    model_args: dict[str, Any]
    recipe: Recipe | None
    shape: Shape | None = None  # of the model they belong to, where it is known


@explain_arguments(
    "bt.finetune('zoo:mlp_mixer_mini', 'folder:mine', 'quickstart-at', out='runs/tuned')",
    RECIPE_HINTS,
)
def finetune(  # noqa: PLR0913 - the public call; what it takes is what a run is
    source: str | Path,
    dataset: str,
    recipe: str | Path | Recipe | None,
    out: str | Path,
    *,
    model: str | None = None,
    pretrained: bool = False,
    model_args: Mapping[str, Any] | None = None,
    seed: int = 0,
    limit: int | None = None,
    image_size: int | None = None,
    overrides: tuple[str, ...] = (),
    device: str = "auto",
    devices: int = 1,
    compile: bool = False,
    loggers: Sequence[EpochLogger] = (),
    progress: Progress | None = None,
    checkpoint: CheckpointName = "best",
) -> Run:
    """Fine-tune given weights on other images; called again, it resumes where it stopped.

    Matching tensors are loaded, embeddings resized, others initialized: see ``finetuned_from``.

    Args:
        source: a run, a checkpoint, or other trained weights: see `load_model`.
        dataset: a dataset's name or ``folder:PATH``.
        recipe: a recipe's name, a YAML file, or a `Recipe`; with None, that of the source run.
        out: the new run's directory.
        model: what a checkpoint's weights belong to; a run knows its own.
        pretrained: begin with the weights that timm publishes for a ``timm:NAME``.
        model_args: further arguments of the model, like ``{"patch": 4}``, beside those of the run.
        seed: seed of new weights, order, augmentation and attack noise.
        limit: train on the first images only.
        image_size: resize images to this height and width, in training and in every evaluation.
        overrides: ``key=value`` changes of the recipe.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        devices: processes on this machine, each with its device.
        compile: compile the model with torch.
        loggers: called after each epoch.
        progress: where to show progress.
        checkpoint: the ``best`` or the ``last`` epoch of a run.
    """
    check_names(dataset=dataset)
    request = ModelRequest(model=model, pretrained=pretrained)
    initial = load_initial_weights(str(source), request, checkpoint)
    recipe = load_recipe(_choose_recipe(recipe, initial, source), overrides)
    spec = resolve_run_spec(
        initial.model, dataset, recipe, seed=seed, limit=limit, image_size=image_size,
        model_args={**initial.model_args, **(model_args or {})},
    )  # fmt: skip
    state, transfer = build_initial_state(spec, initial)
    if progress is not None and is_rank_zero():
        for line in (f"{source}: {transfer}", *transfer_changes(spec, initial, transfer)):
            progress.log(line)
    return train_run(
        spec.model_copy(update={"initial_weights": content_digest(state)}), out,
        initial_state=state, device=device, devices=devices, compile=compile, loggers=loggers,
        finetuned_from={**initial.provenance, **transfer_record(transfer)}, progress=progress,
    )  # fmt: skip


def _choose_recipe(
    recipe: str | Path | Recipe | None, initial: InitialWeights, source: str | Path
) -> str | Path | Recipe:
    """The given recipe, or that of the source run."""
    start_recipe = initial.recipe if recipe is None else recipe
    if start_recipe is None:
        raise UserError(f"{source} is not a run with a recipe; pass --recipe")
    return start_recipe


def build_initial_state(
    spec: RunSpec, initial: InitialWeights
) -> tuple[dict[str, Tensor], TransferReport]:
    """Build the initial weights of a run: the given ones where they match, and a report."""
    model = build_model(spec)
    transfer = transfer_weights(model, initial.weights)
    return model.state_dict(), transfer


def transfer_changes(
    spec: RunSpec, initial: InitialWeights, transfer: TransferReport
) -> tuple[str, ...]:
    """What differs between the model of the weights and that of the run, in words."""
    if initial.shape is None:
        return (describe_image_size(spec),)
    old = create_model(initial.model, **initial.shape, options=initial.model_args, seed=0)
    return describe_changes(old, build_model(spec), transfer)


def finetune_run(
    source: str | Path,
    spec: RunSpec,
    out: str | Path,
    *,
    device: str = "auto",
    progress: Progress | None = None,
) -> Run:
    """Train the run ``spec`` from the best weights of another run."""
    initial = load_initial_weights(str(source), ModelRequest(), "best")
    state, transfer = build_initial_state(spec, initial)
    return train_run(
        spec, out, initial_state=state,
        finetuned_from={**initial.provenance, **transfer_record(transfer)},
        device=device, progress=progress,
    )  # fmt: skip


def load_initial_weights(
    source: str, request: ModelRequest, checkpoint: CheckpointName
) -> InitialWeights:
    """Load the initial weights from a run or from any other source of trained weights."""
    if checkpoint not in CHECKPOINT_NAMES:
        raise UserError(
            f"`checkpoint` must be one of {', '.join(CHECKPOINT_NAMES)}, but got {checkpoint!r}"
        )
    path = Path(source).expanduser()
    run = Run(path)
    if run.exists:
        return _load_run_weights(run, request.model, checkpoint)
    trained = load_trained_weights(source, request)
    name = path.resolve().name if path.exists() else source
    provenance = {"source": name, "digest": content_digest(dict(trained.weights))}
    is_bare_file = isinstance(find_source(source), CheckpointSource)  # then the size is a guess
    shape = None if is_bare_file else dict(trained.shape)
    return InitialWeights(
        dict(trained.weights), trained.model, provenance, dict(trained.options), None, shape
    )


def _load_run_weights(run: Run, model: str | None, checkpoint: CheckpointName) -> InitialWeights:
    spec = load_run_spec(run)
    if model is not None:
        raise UserError(
            f"{run.path} already defines model {spec.model_name!r}; omit --model, or pass "
            f"{run.checkpoint(checkpoint)} to load its weights into another model"
        )
    weights = read_run_checkpoint(run, checkpoint)
    provenance = {"source": run.path.resolve().name, "key": spec.key(), "checkpoint": checkpoint}
    provenance["digest"] = content_digest(weights)
    shape = {name: getattr(spec, name) for name in DEFAULT_SHAPE}
    args = dict(spec.model_args)
    return InitialWeights(weights, spec.model, provenance, args, spec.recipe, shape)


def transfer_record(transfer: TransferReport) -> dict[str, Any]:
    """Transfer record for a run's header; tensors loaded unchanged are only counted."""
    names = {group: list(tensors) for group, tensors in transfer._asdict().items()}
    return {**names, "loaded": len(transfer.loaded)}
