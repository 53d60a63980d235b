"""The training loop: epochs over a data set on Lightning Fabric, resumable at every epoch."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from buttress.attacks.call import How, create_attack, run_attack
from buttress.attacks.freeze import frozen
from buttress.data import Augmentation, Dataset, epoch_order
from buttress.errors import RunError
from buttress.models.checkpoint import save_checkpoint
from buttress.progress import Progress
from buttress.records.run import Run
from buttress.records.spec import RunSpec
from buttress.spec import digest
from buttress.streams import Streams, seed_of
from buttress.threat import Threat
from buttress.training.average import Averaged
from buttress.training.objectives import OBJECTIVES, Objective, Step
from buttress.training.optimise import build_optimiser, rate_factor


@dataclass
class Progressed:
    """How far a run is: what a checkpoint holds beside weights and optimiser."""

    epoch: int = 0
    best_epoch: int = 0
    best_score: tuple[float, float] = (-1.0, -1.0)  # robust, then clean validation accuracy
    history: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """One run in progress. All randomness comes from (seed, epoch, sample id)."""

    def __init__(self, run: Run, model: nn.Module, spec: RunSpec, fabric: Fabric) -> None:
        self.run, self.spec, self.recipe, self.fabric = run, spec, spec.recipe, fabric
        self.plain = model
        optimiser = build_optimiser(model, self.recipe.optimiser)
        self.peaks = [group["lr"] for group in optimiser.param_groups]
        self.model, self.optimiser = fabric.setup(model, optimiser)
        self.objective: Objective = OBJECTIVES.create(
            self.recipe.objective.name, self.recipe.objective.args
        )
        self.threat = Threat.parse(self.recipe.threat) if self.recipe.threat else None
        self._eps = 0.0 if self.threat is None else self.threat.eps
        spec_of = self.recipe.average
        self.average = None if spec_of is None else Averaged(model, spec_of)
        self.at = Progressed()

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        if self.average is None:
            self.plain.load_state_dict(state["model"])
        else:
            self.average.restore(state)
        self.optimiser.load_state_dict(state["optimiser"])
        self.at = Progressed(
            state["epoch"], state["best_epoch"], tuple(state["best_score"]), list(state["history"])
        )
        self.run.write_history(self.at.history)

    def fit(self, train: Dataset, val: Dataset, progress: Progress) -> None:
        """Trains the epochs that are missing."""
        task = progress.task(f"train {self.spec.model}", self.recipe.epochs * len(train))
        task.advance(self.at.epoch * len(train))
        try:
            while self.at.epoch < self.recipe.epochs:
                started = time.perf_counter()
                row = self._epoch(train, task.advance)
                row |= self._validate(val)
                row["seconds"] = round(time.perf_counter() - started, 3)
                self._keep(row)
                task.advance(0, note=_note(row, self.recipe.epochs))
        finally:
            task.close()

    def _epoch(self, train: Dataset, advance: Any) -> dict[str, Any]:
        epoch, size = self.at.epoch, self.recipe.batch_size
        # Dropout draws from the global generator; seeded per epoch, a resumed epoch is the same.
        torch.manual_seed(seed_of(self.spec.seed, "epoch", epoch))
        order = epoch_order(len(train), self.spec.seed, epoch)
        steps = max(1, len(order) // size)
        self.model.train()
        loss_sum = torch.zeros((), device=self.fabric.device)
        right = torch.zeros((), device=self.fabric.device)
        seen = 0
        for index in range(steps):
            rows = order[index * size : (index + 1) * size]
            self._set_rate(epoch + index / steps)
            loss, hits = self._step(train, rows, epoch, index / steps)
            loss_sum += loss * len(rows)
            right += hits
            seen += len(rows)
            advance(len(train) / steps)
        mean = loss_sum.item() / seen
        if not math.isfinite(mean):
            raise RunError(
                f"the loss is not finite in epoch {epoch + 1} of {self.run.path}; the checkpoint "
                f"of epoch {epoch} is kept; lower the learning rate (optimiser.lr) and train again"
            )
        accuracy = right.item() / seen
        rate = self.optimiser.param_groups[0]["lr"]
        return {"epoch": epoch + 1, "lr": rate, "loss": mean, "train_accuracy": accuracy}

    def _step(
        self, train: Dataset, rows: Tensor, epoch: int, share: float
    ) -> tuple[Tensor, Tensor]:
        self.optimiser.zero_grad(set_to_none=True)
        pieces = rows.tensor_split(self.recipe.accumulate)
        total = torch.zeros((), device=self.fabric.device)
        right = torch.zeros((), device=self.fabric.device)
        for piece in (p for p in pieces if len(p)):
            loss, hits = self._loss(train, piece, epoch, share)
            part = loss * (len(piece) / len(rows))
            self.fabric.backward(part)
            total += part.detach()
            right += hits
        if self.recipe.l1:
            self.fabric.backward(penalty := self.recipe.l1 * size_of_weights(self.plain))
            total += penalty.detach()
        if self.recipe.clip_norm is not None:
            self.fabric.clip_gradients(self.model, self.optimiser, max_norm=self.recipe.clip_norm)
        self.optimiser.step()
        if self.average is not None:
            self.average.update(epoch + share)
        return total, right

    def _loss(
        self, train: Dataset, rows: Tensor, epoch: int, share: float
    ) -> tuple[Tensor, Tensor]:
        """The loss of some images, and how many of them are right."""
        batch, now = train.take(rows), epoch + share
        streams = Streams(self.spec.seed, f"train/{epoch}", batch.ids)
        augmented = Augmentation.of(self.recipe.augmentation)(batch.x, streams)
        x, y = augmented.to(self.fabric.device), batch.y.to(self.fabric.device)
        threat = self._threat(now)
        strength = 1.0 if threat is None or not self._eps else threat.eps / self._eps
        step = Step(x, y, threat, streams, now, strength, self.recipe.label_smoothing)
        loss = self.objective.loss(self.model, step)
        return loss.total, (loss.logits.argmax(1) == y).sum()

    def _threat(self, epoch: float) -> Threat | None:
        """The adversary at a (fractional) epoch: weaker while eps warms up."""
        recipe = self.recipe
        gone, length = epoch - recipe.eps_zero_epochs, recipe.eps_warmup_epochs
        if self.threat is None or gone >= length:
            return self.threat
        share = max(gone, 0.0) / length
        if recipe.eps_warmup == "sine":
            share = (1 + math.sin(math.pi * (share - 0.5))) / 2
        return self.threat.scaled(share)

    def _set_rate(self, epoch: float) -> None:
        factor = rate_factor(self.recipe.schedule, epoch, self.recipe.epochs)
        for group, peak in zip(self.optimiser.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor

    def _validate(self, val: Dataset) -> dict[str, Any]:
        """Clean and robust accuracy on images that training never sees."""
        spec, number = self.recipe.validation, self.at.epoch + 1
        if number % spec.every and number != self.recipe.epochs:
            return {"val_clean": None, "val_robust": None}
        chosen = create_attack(spec.attack.name, **spec.attack.args)
        how = How(self.spec.seed, stop_when_broken=True)
        clean = robust = 0
        model = self.model if self.average is None else self.average.module
        for x, y, ids in val.batches(256):
            x, y = x.to(self.fabric.device), y.to(self.fabric.device)
            with frozen(model), torch.no_grad():
                kept = model(x).argmax(1) == y
            clean += int(kept.sum())
            if self.threat is not None and kept.any():
                here = ids[kept.cpu()]
                out = run_attack(chosen, model, x[kept], y[kept], self.threat, ids=here, how=how)
                robust += int((~out.broken).sum())
        share = None if self.threat is None else robust / len(val)
        return {"val_clean": clean / len(val), "val_robust": share}

    def _keep(self, row: dict[str, Any]) -> None:
        """Ends an epoch: the best checkpoint, then the last one, then the readable history."""
        at = self.at
        score = (row["val_robust"] or 0.0, row["val_clean"] or 0.0)
        row["best"] = row["val_clean"] is not None and score > at.best_score
        at.epoch, at.history = at.epoch + 1, [*at.history, row]
        if row["best"]:
            at.best_epoch, at.best_score = at.epoch, score
            save_checkpoint(self.run.checkpoint("best"), self._state())
        save_checkpoint(self.run.checkpoint("last"), self._state())
        self.run.write_history(at.history)

    def _state(self) -> dict[str, Any]:
        weights = {"model": self.plain.state_dict()}
        return {
            **(weights if self.average is None else self.average.state()),
            "optimiser": self.optimiser.state_dict(),
            "epoch": self.at.epoch,
            "best_epoch": self.at.best_epoch,
            "best_score": list(self.at.best_score),
            "history": self.at.history,
            "spec": digest(self.spec.identity()),
        }


def size_of_weights(model: nn.Module) -> Tensor:
    """The sum of the sizes of all weights; biases and norms, which have one dimension, are not."""
    return torch.stack([p.abs().sum() for p in model.parameters() if p.ndim > 1]).sum()


def _note(row: dict[str, Any], epochs: int) -> str:
    parts = [f"epoch {row['epoch']}/{epochs}", f"loss {row['loss']:.2f}"]
    if row["val_clean"] is not None:
        parts.append(f"clean {row['val_clean']:.0%}")
    if row["val_robust"] is not None:
        parts.append(f"robust {row['val_robust']:.0%}")
    return "  ".join(parts)
