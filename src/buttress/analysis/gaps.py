"""How far short attacks stay behind a long one, on the checkpoints of a run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from buttress.analysis.ascent import Ascents, loss_at
from buttress.analysis.subject import Subject
from buttress.attacks.freeze import on_device_of
from buttress.models.load import load_weights, read_run
from buttress.records.run import Run, Which
from buttress.spec import Spec
from buttress.streams import Streams
from buttress.threat import Threat
from buttress.training.objectives import OBJECTIVES
from buttress.training.objectives.core import Step
from buttress.training.train import build

EPOCH = "epoch "  # and its number: the name of a kept one
TINY = 1e-12


class Gap(Spec):
    """One attack against the long one; losses are means over images and seeds."""

    name: str  # pgd-K, or training
    loss: float
    gap: float  # r = 100 |L_long - L| / L_long, in percent
    least: float  # of the seeds
    most: float


class Checkpoint(Spec):
    """The attacks on the weights of one epoch."""

    name: str
    epoch: int | None
    clean_loss: float
    long_loss: float
    gaps: tuple[Gap, ...]
    training: Gap | None  # the attack that the run was trained with


@dataclass(frozen=True)
class Attacks:
    """The numbers of steps, and how far their steps reach together."""

    short: tuple[int, ...]
    long: int
    reach: float  # in eps


def checkpoints_of(subject: Subject) -> dict[str, Which | int]:
    """The subject's own, that of the last epoch where it is another one, and kept epochs."""
    run = subject.run
    if run is None or not run.is_trained:
        return {"given": "best"}
    best, last = run.summary["best_epoch"], run.summary["epochs"]
    found: dict[str, Which | int] = {"best": "best"}
    if best != last and run.checkpoint("last").is_file():
        found["last"] = "last"
    found.update((f"{EPOCH}{n}", n) for n in run.kept_epochs if n not in (best, last))
    return found


def model_at(subject: Subject, which: Which | int) -> nn.Module:
    """The network with the weights of a checkpoint; the best ones are the subject's own."""
    if which == "best" or subject.run is None:
        return subject.model
    model = build(subject.run.spec).eval()
    load_weights(model, read_run(subject.run, which), subject.run.checkpoint(which))
    return model.to(next(subject.model.parameters()).device)


def gaps_at(
    name: str, model: nn.Module, ascents: Ascents, subject: Subject, attacks: Attacks
) -> Checkpoint:
    """The gap of each short attack, and of the one that the run was trained with."""

    def ends(steps: int) -> Tensor:
        return ascents.losses(model, steps, attacks.reach / steps)[:, -1]

    long = ends(attacks.long)
    x = on_device_of(model, ascents.batch.x)
    clean = loss_at(model, x, ascents.batch.y.to(x.device)).mean()
    trained = training_losses(model, ascents, subject.run)
    return Checkpoint(
        name=name,
        epoch=_epoch(name, subject.run),
        clean_loss=float(clean),
        long_loss=float(long.mean()),
        gaps=tuple(gap_of(f"pgd-{k}", ends(k), long) for k in attacks.short),
        training=None if trained is None else gap_of("training", trained, long),
    )


def gap_of(name: str, losses: Tensor, long: Tensor) -> Gap:
    """The gap of mean losses, and its range over seeds; both are (seeds,)."""
    each = 100 * (long - losses).abs() / long.clamp_min(TINY)
    mean = 100 * (long.mean() - losses.mean()).abs() / long.mean().clamp_min(TINY)
    return Gap(
        name=name,
        loss=float(losses.mean()),
        gap=float(mean),
        least=float(each.min()),
        most=float(each.max()),
    )


def training_losses(model: nn.Module, ascents: Ascents, run: Run | None) -> Tensor | None:
    """(seeds,) the mean loss at what the run's own objective finds; None if it does not attack."""
    if run is None:
        return None
    recipe = run.spec.recipe
    objective = OBJECTIVES.get(recipe.objective.name)(**recipe.objective.args)
    if not objective.needs_threat:
        return None
    x = on_device_of(model, ascents.batch.x)
    y = ascents.batch.y.to(x.device)
    found = []
    for seed in ascents.seeds:
        streams = Streams(seed, "training attack", ascents.batch.ids)
        step = Step(x, y, Threat.parse(str(recipe.threat)), streams)
        seen = objective.search(model, step)
        if seen is None or torch.equal(seen.x, x):
            return None
        found.append(loss_at(model, seen.x.detach(), y).double().mean().cpu())
    return torch.stack(found)


def _epoch(name: str, run: Run | None) -> int | None:
    if run is None or name == "given":
        return None
    if name.startswith(EPOCH):
        return int(name.removeprefix(EPOCH))
    return int(run.summary["best_epoch" if name == "best" else "epochs"])
