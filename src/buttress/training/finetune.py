"""Fine-tuning: a run that begins with the weights of another run, or of anyone's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from buttress.errors import UserError
from buttress.models.checkpoint import tree_digest
from buttress.models.load import Wanted, find_trained, read_run
from buttress.models.sources.run import refuse_code_inside
from buttress.models.transfer import Transferred, transfer
from buttress.progress import Progress, Silent
from buttress.records.run import WHICH, Run, Which
from buttress.records.spec import Recipe, RunSpec
from buttress.training.logs import Listener
from buttress.training.ranks import is_first
from buttress.training.recipe import load_recipe
from buttress.training.train import build, resolve, train_run


class Source(NamedTuple):
    """Trained weights, and what is known about them."""

    weights: dict[str, Tensor]
    model: str
    about: dict[str, Any]  # for the header of the new run
    model_args: dict[str, Any]
    recipe: Recipe | None


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
    changes: tuple[str, ...] = (),
    device: str = "auto",
    devices: int = 1,
    compile: bool = False,
    listeners: Sequence[Listener] = (),
    progress: Progress | None = None,
    which: Which = "best",
) -> Run:
    """Trains on from given weights, on other images; called again, it goes on where it stopped.

    What fits is loaded, positions and patches are resized, the rest is new: see ``finetuned_from``
    in the run's header.

    Args:
        source: a run, a checkpoint, or whatever else names trained weights: see `load_model`.
        dataset: a data set's name or ``folder:PATH``.
        recipe: a recipe's name, a YAML file, or a `Recipe`; with None, that of the source run.
        out: the new run's directory.
        model: what a checkpoint's weights belong to; a run knows its own.
        pretrained: begin with the weights that timm publishes for a ``timm:NAME``.
        model_args: further arguments of the model, like ``{"patch": 4}``, beside those of the run.
        seed: decides new weights, order, augmentation and attack noise.
        limit: train on the first images only.
        changes: ``key=value`` changes of the recipe.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        devices: processes on this machine, each with its device.
        compile: compile the network with torch.
        listeners: who is told of each epoch.
        progress: where to show progress.
        which: the ``best`` or the ``last`` epoch of a run.
    """
    progress = progress or Silent()
    given = read_source(str(source), Wanted(model=model, pretrained=pretrained), which)
    chosen = given.recipe if recipe is None else recipe
    if chosen is None:
        raise UserError(f"{source} is no run with a recipe of its own; name a recipe")
    spec = resolve(
        given.model, dataset, load_recipe(chosen, changes), seed=seed, limit=limit,
        model_args={**given.model_args, **(model_args or {})},
    )  # fmt: skip
    start, moved = begun(spec, given)
    if is_first():
        progress.log(f"{source}: {moved}")
    return train_run(
        spec.model_copy(update={"start": tree_digest(start)}), out, start=start,
        finetuned_from={**given.about, **described(moved)}, device=device, devices=devices,
        compile=compile, listeners=listeners, progress=progress,
    )  # fmt: skip


def begun(spec: RunSpec, given: Source) -> tuple[dict[str, Tensor], Transferred]:
    """The weights a run begins with: those given as far as they fit, and what became of them."""
    network = build(spec)
    moved = transfer(network, given.weights)
    return network.state_dict(), moved


def begin_with(
    source: str | Path,
    spec: RunSpec,
    out: str | Path,
    *,
    device: str = "auto",
    progress: Progress | None = None,
) -> Run:
    """Trains the run ``spec``, whose start is named already, from the best weights of another."""
    given = read_source(str(source), Wanted(), "best")
    start, moved = begun(spec, given)
    return train_run(
        spec, out, start=start, finetuned_from={**given.about, **described(moved)},
        device=device, progress=progress,
    )  # fmt: skip


def read_source(source: str, wanted: Wanted, which: Which) -> Source:
    """The weights to begin with, from a run or from any other source of trained weights."""
    if which not in WHICH:
        raise UserError(f"which must be one of {', '.join(WHICH)}, but got {which!r}")
    path = Path(source).expanduser()
    run = Run(path)
    if run.exists:
        return _from_run(run, wanted.model, which)
    trained = find_trained(source, wanted)
    name = path.resolve().name if path.exists() else source
    about = {"source": name, "digest": tree_digest(dict(trained.weights))}
    return Source(dict(trained.weights), trained.model, about, dict(trained.options), None)


def _from_run(run: Run, model: str | None, which: Which) -> Source:
    spec = run.spec
    if model is not None:
        raise UserError(
            f"{run.path} is a run of the model {spec.model!r}; leave the model out, or name the "
            f"file {run.checkpoint(which)} to load its weights into another"
        )
    refuse_code_inside(spec.model, run.path)
    weights = read_run(run, which)
    about = {"source": run.path.resolve().name, "key": spec.key(), "which": which}
    about["digest"] = tree_digest(weights)
    return Source(weights, spec.model, about, dict(spec.model_args), spec.recipe)


def described(moved: Transferred) -> dict[str, Any]:
    """What a run's header says; tensors that were loaded as they are are only counted."""
    rest = {k: list(v) for k, v in moved._asdict().items() if k != "loaded"}
    return {"loaded": len(moved.loaded), **rest}
