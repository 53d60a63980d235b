"""Loss along the iterates of an attack, and the gap of short attacks to a long one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from buttress.analysis.subject import EPOCH_PREFIX, AnalysisSubject
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
from buttress.system.rng import SampleRNG
from buttress.threats.core import Threat
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

    def losses(self, model: nn.Module, steps: int, rel_step: float) -> Tensor:
        """(seeds, steps + 1, N) cross-entropy at the start and after each step of PGD."""
        losses, attack = [], PGD(steps=steps, rel_step=rel_step)
        seeds_per_batch = max(1, MAX_BATCH // len(self.batch.x))
        for first in range(0, len(self.seeds), seeds_per_batch):
            seeds = self.seeds[first : first + seeds_per_batch]
            losses.append(losses_per_step(attack, model, self.batch, self.threat, seeds))
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
        last = last_iterate(attack, Problem.pose(model, x, y, threat, streams), record_loss)
        losses.append(per_sample_loss(model, last, y))
    return torch.stack(losses, 1).view(count, -1, len(losses)).mT.double().cpu()


def per_sample_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(N,) cross-entropy."""
    with eval_mode(model), torch.no_grad():
        return cross_entropy(model(x), y)


TINY = 1e-12


class AttackGap(Spec):
    """One attack against the long one; losses are means over images and seeds."""

    name: str  # pgd-K, or training
    loss: float
    gap: float  # r = 100 |L_long - L| / L_long, in percent
    lowest: float  # of the seeds
    highest: float


class CheckpointGaps(Spec):
    """The attacks on the weights of one epoch."""

    name: str
    epoch: int | None
    clean_loss: float
    reference_loss: float  # of the long attack
    gaps: tuple[AttackGap, ...]
    training_attack: AttackGap | None  # the attack that the run was trained with


@dataclass(frozen=True)
class AttackLengths:
    """Step counts of the attacks, and the total length of their steps."""

    short_steps: tuple[int, ...]
    reference_steps: int
    total_step_length: float  # in eps


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
    trajectories: AttackTrajectories,
    subject: AnalysisSubject,
    lengths: AttackLengths,
) -> tuple[CheckpointGaps, dict[str, Tensor]]:
    """Gap of each short attack and of the training attack to the long attack.

    Beside it the losses (N,) of each image under the attacks, means over seeds, by name; the long
    attack is ``reference``.
    """

    def final_losses(steps: int) -> Tensor:
        rel_step = lengths.total_step_length / steps
        return trajectories.losses(model, steps, rel_step)[:, -1]

    losses = {"reference": final_losses(lengths.reference_steps)}
    losses |= {f"pgd-{k}": final_losses(k) for k in lengths.short_steps}
    training_losses = training_attack_losses(model, trajectories, subject.run)
    if training_losses is not None:
        losses["training"] = training_losses
    gaps = {
        attack: attack_gap(attack, values.mean(1), losses["reference"].mean(1))
        for attack, values in losses.items()
        if attack != "reference"
    }
    x = to_model_device(model, trajectories.batch.x)
    clean = per_sample_loss(model, x, trajectories.batch.y.to(x.device)).mean()
    training_gap = gaps.pop("training", None)
    checkpoint = CheckpointGaps(
        name=name,
        epoch=_checkpoint_epoch(name, subject.run),
        clean_loss=float(clean),
        reference_loss=float(losses["reference"].mean(1).mean()),
        gaps=tuple(gaps.values()),
        training_attack=training_gap,
    )
    return checkpoint, {attack: values.mean(0) for attack, values in losses.items()}


def attack_gap(name: str, losses: Tensor, long: Tensor) -> AttackGap:
    """The gap of mean losses, and its range over seeds; both are (seeds,)."""
    gap_per_seed = 100 * (long - losses).abs() / long.clamp_min(TINY)
    mean = 100 * (long.mean() - losses.mean()).abs() / long.mean().clamp_min(TINY)
    return AttackGap(
        name=name,
        loss=float(losses.mean()),
        gap=float(mean),
        lowest=float(gap_per_seed.min()),
        highest=float(gap_per_seed.max()),
    )


def training_attack_losses(
    model: nn.Module, trajectories: AttackTrajectories, run: Run | None
) -> Tensor | None:
    """(seeds, N) losses under the attack of the run's own objective; None if it does not attack."""
    if run is None:
        return None
    recipe = run.spec.recipe
    objective = OBJECTIVES.get(recipe.objective.name)(**recipe.objective.args)
    if not objective.needs_threat:
        return None
    x = to_model_device(model, trajectories.batch.x)
    y = trajectories.batch.y.to(x.device)
    losses = []
    for seed in trajectories.seeds:
        streams = SampleRNG(seed, "training attack", trajectories.batch.ids)
        step = TrainingBatch(x, y, Threat.parse(str(recipe.threat)), streams)
        adversarial = objective.find_adversarial(model, step)
        if adversarial is None or torch.equal(adversarial.x, x):
            return None
        losses.append(per_sample_loss(model, adversarial.x.detach(), y).double().cpu())
    return torch.stack(losses)


def _checkpoint_epoch(name: str, run: Run | None) -> int | None:
    if run is None or name == "given":
        return None
    if name.startswith(EPOCH_PREFIX):
        return int(name.removeprefix(EPOCH_PREFIX))
    return int(run.summary["best_epoch" if name == "best" else "epochs"])
