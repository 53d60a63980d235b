"""Loss along the iterates of an attack, and the gap of short attacks to a long one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from buttress.analysis.subject import AnalysisSubject
from buttress.attacks.core import Attack
from buttress.attacks.losses import cross_entropy
from buttress.attacks.pgd import PGD
from buttress.attacks.problem import ModelOutput, Problem
from buttress.config import Spec
from buttress.data import Batch
from buttress.engine.last_iterate import last_iterate
from buttress.models.eval_mode import eval_mode, to_model_device
from buttress.models.loading.load import load_weights
from buttress.models.loading.run import read_run_checkpoint
from buttress.results.run import CheckpointName, Run
from buttress.system.progress import ProgressTask
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import Threat
from buttress.training.objectives import OBJECTIVES
from buttress.training.objectives.core import TrainingBatch
from buttress.training.train import build_model

MAX_BATCH = 128  # images and seeds that pass together, at most


@dataclass(frozen=True)
class AttackTrajectories:
    """Attacks on the same images from several random starts."""

    batch: Batch
    threat: Threat
    seeds: tuple[int, ...]
    task: ProgressTask

    def losses(self, model: nn.Module, steps: int, rel_step: float) -> Tensor:
        """(seeds, steps + 1) mean cross-entropy at the start and after each step of PGD."""
        losses, attack = [], PGD(steps=steps, rel_step=rel_step)
        seeds_per_batch = max(1, MAX_BATCH // len(self.batch.x))
        for first in range(0, len(self.seeds), seeds_per_batch):
            seeds = self.seeds[first : first + seeds_per_batch]
            losses.append(losses_per_step(attack, model, self.batch, self.threat, seeds).mean(2))
            self.task.advance(steps * len(seeds))
        return torch.cat(losses)


@dataclass(frozen=True)
class MultiSeedStreams(SampleRNG):
    """The streams of the same samples under several seeds, one seed after another."""

    seeds: tuple[int, ...] = ()

    def sample_keys(self, draw_id: int | str | Tensor) -> Tensor:
        """Those that each seed alone would give."""
        count = len(self.seeds)
        uses = draw_id.chunk(count) if isinstance(draw_id, Tensor) else [draw_id] * count
        parts = zip(self.seeds, self.ids.chunk(count), uses, strict=True)
        return torch.cat(
            [SampleRNG(seed, self.purpose, ids).sample_keys(u) for seed, ids, u in parts]
        )


def losses_per_step(
    attack: Attack, model: nn.Module, batch: Batch, threat: Threat, seeds: tuple[int, ...]
) -> Tensor:
    """(seeds, steps + 1, N) cross-entropy at the start and after each step.

    The last iterate, as training uses it, not the best one: so the loss may fall. Steps of a set
    length make the first k points the same for an attack of k steps and for a longer one. All seeds
    pass together: small batches leave a CPU idle.
    """
    count = len(seeds)
    x = to_model_device(model, batch.x).repeat(count, 1, 1, 1)
    y = batch.y.to(x.device).repeat(count)
    losses: list[Tensor] = []

    def record_loss(output: ModelOutput) -> None:
        losses.append(cross_entropy(output.logits.detach(), y))

    with eval_mode(model):
        streams = MultiSeedStreams(0, "pgd", batch.ids.repeat(count), seeds)
        last = last_iterate(attack, Problem(model, x, y, threat, streams), record_loss)
        losses.append(per_sample_loss(model, last, y))
    return torch.stack(losses, 1).view(count, -1, len(losses)).mT.double().cpu()


def per_sample_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(N,) cross-entropy."""
    with eval_mode(model), torch.no_grad():
        return cross_entropy(model(x), y)


EPOCH_PREFIX = "epoch "  # and its number: the name of a kept one
TINY = 1e-12


class AttackGap(Spec):
    """One attack against the long one; losses are means over images and seeds."""

    name: str  # pgd-K, or training
    loss: float
    gap: float  # r = 100 |L_long - L| / L_long, in percent
    least: float  # of the seeds
    most: float


class CheckpointGaps(Spec):
    """The attacks on the weights of one epoch."""

    name: str
    epoch: int | None
    clean_loss: float
    long_loss: float
    gaps: tuple[AttackGap, ...]
    training: AttackGap | None  # the attack that the run was trained with


@dataclass(frozen=True)
class AttackLengths:
    """Step counts of the attacks, and the total length of their steps."""

    short: tuple[int, ...]
    long: int
    reach: float  # in eps


def run_checkpoints(subject: AnalysisSubject) -> dict[str, CheckpointName | int]:
    """The subject's own, that of the last epoch where it is another one, and kept epochs."""
    run = subject.run
    if run is None or not run.is_trained:
        return {"given": "best"}
    best, last = run.summary["best_epoch"], run.summary["epochs"]
    checkpoints: dict[str, CheckpointName | int] = {"best": "best"}
    if best != last and run.checkpoint("last").is_file():
        checkpoints["last"] = "last"
    checkpoints.update((f"{EPOCH_PREFIX}{n}", n) for n in run.kept_epochs if n not in (best, last))
    return checkpoints


def checkpoint_model(subject: AnalysisSubject, checkpoint: CheckpointName | int) -> nn.Module:
    """The model with the weights of a checkpoint; the best ones are the subject's own."""
    if checkpoint == "best" or subject.run is None:
        return subject.model
    model = build_model(subject.run.spec).eval()
    load_weights(
        model, read_run_checkpoint(subject.run, checkpoint), subject.run.checkpoint(checkpoint)
    )
    return model.to(next(subject.model.parameters()).device)


def checkpoint_gaps(
    name: str,
    model: nn.Module,
    ascents: AttackTrajectories,
    subject: AnalysisSubject,
    attacks: AttackLengths,
) -> CheckpointGaps:
    """Gap of each short attack and of the training attack to the long attack."""

    def final_losses(steps: int) -> Tensor:
        return ascents.losses(model, steps, attacks.reach / steps)[:, -1]

    long = final_losses(attacks.long)
    x = to_model_device(model, ascents.batch.x)
    clean = per_sample_loss(model, x, ascents.batch.y.to(x.device)).mean()
    losses_of_training_attack = training_attack_losses(model, ascents, subject.run)
    return CheckpointGaps(
        name=name,
        epoch=_checkpoint_epoch(name, subject.run),
        clean_loss=float(clean),
        long_loss=float(long.mean()),
        gaps=tuple(attack_gap(f"pgd-{k}", final_losses(k), long) for k in attacks.short),
        training=None
        if losses_of_training_attack is None
        else attack_gap("training", losses_of_training_attack, long),
    )


def attack_gap(name: str, losses: Tensor, long: Tensor) -> AttackGap:
    """The gap of mean losses, and its range over seeds; both are (seeds,)."""
    gap_per_seed = 100 * (long - losses).abs() / long.clamp_min(TINY)
    mean = 100 * (long.mean() - losses.mean()).abs() / long.mean().clamp_min(TINY)
    return AttackGap(
        name=name,
        loss=float(losses.mean()),
        gap=float(mean),
        least=float(gap_per_seed.min()),
        most=float(gap_per_seed.max()),
    )


def training_attack_losses(
    model: nn.Module, ascents: AttackTrajectories, run: Run | None
) -> Tensor | None:
    """(seeds,) mean loss on the images of the run's own objective; None if it does not attack."""
    if run is None:
        return None
    recipe = run.spec.recipe
    objective = OBJECTIVES.get(recipe.objective.name)(**recipe.objective.args)
    if not objective.needs_threat:
        return None
    x = to_model_device(model, ascents.batch.x)
    y = ascents.batch.y.to(x.device)
    losses = []
    for seed in ascents.seeds:
        streams = SampleRNG(seed, "training attack", ascents.batch.ids)
        step = TrainingBatch(x, y, Threat.parse(str(recipe.threat)), streams)
        adversarial = objective.find_adversarial(model, step)
        if adversarial is None or torch.equal(adversarial.x, x):
            return None
        losses.append(per_sample_loss(model, adversarial.x.detach(), y).double().mean().cpu())
    return torch.stack(losses)


def _checkpoint_epoch(name: str, run: Run | None) -> int | None:
    if run is None or name == "given":
        return None
    if name.startswith(EPOCH_PREFIX):
        return int(name.removeprefix(EPOCH_PREFIX))
    return int(run.summary["best_epoch" if name == "best" else "epochs"])
