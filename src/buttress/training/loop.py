"""The training loop: epochs over a data set on Lightning Fabric, resumable at every epoch."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from buttress.attacks.call import How, create_attack, run_attack
from buttress.attacks.freeze import frozen
from buttress.data import Augmentation, Dataset, Mixing
from buttress.errors import RunError
from buttress.models.checkpoint import load_checkpoint, save_checkpoint
from buttress.progress import Progress, Task
from buttress.records.run import Run
from buttress.records.spec import RunSpec
from buttress.spec import digest
from buttress.streams import Streams, seed_of
from buttress.threat import Threat
from buttress.training.average import Averaged
from buttress.training.awp import moved_weights
from buttress.training.batches import Batches, Piece
from buttress.training.guard import MOST_ROLLBACKS, has_collapsed, has_diverged
from buttress.training.objectives import OBJECTIVES, Found, Objective, Step
from buttress.training.optimise import build_optimiser, rate_factor
from buttress.training.twin import Twin

Told = Callable[[dict[str, Any]], None]
LOOK = 20  # steps between two looks at whether the loss is finite, where a look makes a device wait


@dataclass
class Progressed:
    """How far a run is: what a checkpoint holds beside weights and optimiser."""

    epoch: int = 0
    best_epoch: int = 0
    best_score: tuple[float, float] = (-1.0, -1.0)  # what epochs are compared by, then the other
    history: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)  # what guards noticed and did

    @property
    def rollbacks(self) -> int:
        return sum(event["kind"] == "rollback" for event in self.events)


class Trainer:
    """One run in progress. All randomness comes from (seed, epoch, sample id)."""

    def __init__(
        self, run: Run, model: nn.Module, spec: RunSpec, fabric: Fabric, *, compile: bool = False
    ) -> None:
        self.run, self.spec, self.recipe, self.fabric = run, spec, spec.recipe, fabric
        self.plain = model
        optimiser = build_optimiser(model, self.recipe.optimiser)
        self.peaks = [group["lr"] for group in optimiser.param_groups]
        seen: Any = torch.compile(model) if compile else model
        self.model, self.optimiser = fabric.setup(seen, optimiser)
        self.objective = self._objective(0)
        self.threat = Threat.parse(self.recipe.threat) if self.recipe.threat else None
        self._eps = 0.0 if self.threat is None else self.threat.eps
        spec_of = self.recipe.average
        self.average = None if spec_of is None else Averaged(model, spec_of)
        self.augmentation = Augmentation.of(self.recipe.augmentation)
        self.memory: dict[str, Tensor] = {}
        self.twin: Twin | None = None
        self.at = Progressed()

    def _objective(self, rollbacks: int) -> Objective:
        """The recipe's, with a longer attack after each time that it was deceived."""
        spec = self.recipe.objective
        made: Objective = OBJECTIVES.create(spec.name, spec.args)
        for _ in range(rollbacks):
            made = made.stronger()
        return made

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        if self.average is None:
            self.plain.load_state_dict(state["model"])
        else:
            self.average.restore(state)
        self.optimiser.load_state_dict(state["optimiser"])
        self.memory = dict(state.get("memory", {}))
        score, events = tuple(state["best_score"]), list(state.get("events", []))
        self.at = Progressed(
            state["epoch"], state["best_epoch"], score, list(state["history"]), events
        )
        self.objective = self._objective(self.at.rollbacks)
        if self.fabric.is_global_zero:
            self.run.write_history(self.at.history)

    def fit(self, batches: Batches, val: Dataset, progress: Progress, told: Told) -> None:
        """Trains the epochs that are missing."""
        self.twin = Twin(self.plain, batches.first(8).to(self.fabric.device))
        task = progress.task(f"train {self.spec.model}", self.recipe.epochs * batches.images)
        task.advance(self.at.epoch * batches.images)
        try:
            while self.at.epoch < self.recipe.epochs:
                started = time.perf_counter()
                row = self._epoch(batches, task)
                trained = time.perf_counter() - started
                row |= self._validate(val)
                row["seconds"] = round(time.perf_counter() - started, 3)
                row["images_per_second"] = round(batches.images / trained, 1)
                self._end(row, progress, told)
                task.advance(0, note=_note(row, self.recipe.epochs))
        finally:
            task.close()

    def _epoch(self, batches: Batches, task: Task) -> dict[str, Any]:
        epoch, fabric = self.at.epoch, self.fabric
        # Dropout draws from the global generator; seeded per epoch, a resumed epoch is the same.
        torch.manual_seed(seed_of(self.spec.seed, "epoch", epoch, *self._salt()))
        self.model.train()
        sums = torch.zeros(3, device=fabric.device)  # loss, hits, images
        steps, started, seen = batches.steps, time.perf_counter(), 0
        for index, rows in enumerate(batches.of(epoch)):
            piece = batches.piece(rows, fabric.global_rank, fabric.world_size)
            for again in range(self.objective.repeats):
                share = (index + again / self.objective.repeats) / steps
                self._set_rate(epoch + share)
                loss, hits = self._step(batches, piece, epoch, share)
            sums += torch.stack([loss * len(piece), hits, hits.new_tensor(len(piece))])
            if fabric.device.type == "cpu" or index % LOOK == LOOK - 1:
                self._stop_if_wild(float(sums[0]))
            seen += len(rows)
            rate = seen / (time.perf_counter() - started)
            task.advance(batches.images / steps, f"epoch {epoch + 1}  {rate:.0f} images/s")
        sums = fabric.all_reduce(sums, reduce_op="sum")
        mean, accuracy = float(sums[0] / sums[2]), float(sums[1] / sums[2])
        self._stop_if_wild(mean)
        rate = self.optimiser.param_groups[0]["lr"]
        return {"epoch": epoch + 1, "lr": rate, "loss": mean, "train_accuracy": accuracy}

    def _salt(self) -> tuple[int, ...]:
        """What makes the dropout of the further processes another; the first has none."""
        return (self.fabric.global_rank,) if self.fabric.global_rank else ()

    def _stop_if_wild(self, loss: float) -> None:
        """A loss that is not finite ends training at once."""
        if math.isfinite(loss):
            return
        raise RunError(
            f"the loss is not finite in epoch {self.at.epoch + 1} of {self.run.path}; the "
            f"checkpoint of epoch {self.at.epoch} is kept; lower the learning rate "
            "(optimiser.lr) and train again"
        )

    def _step(
        self, batches: Batches, piece: Piece, epoch: int, share: float
    ) -> tuple[Tensor, Tensor]:
        """One step of the optimiser: the loss of this process's images, and how many are right."""
        self.optimiser.zero_grad(set_to_none=True)
        parts = [self._given(batches, p, epoch, share) for p in piece.split(self.recipe.accumulate)]
        founds = [self.objective.search(self.plain, step) for step in parts]
        with self._weights(parts, founds, epoch + share):
            total, right = self._backward(parts, founds, piece)
            if self.recipe.clip_norm is not None:
                self.fabric.clip_gradients(
                    self.model, self.optimiser, max_norm=self.recipe.clip_norm
                )
            self.optimiser.step()
        if self.average is not None:
            self.average.update(epoch + share)
        return total, right

    def _backward(
        self, parts: list[Step], founds: list[Found | None], piece: Piece
    ) -> tuple[Tensor, Tensor]:
        total = torch.zeros((), device=self.fabric.device)
        right = torch.zeros((), device=self.fabric.device)
        for number, (step, found) in enumerate(zip(parts, founds, strict=True)):
            is_last = number == len(parts) - 1
            with self.fabric.no_backward_sync(self.model, enabled=not is_last):
                loss = self.objective.loss(self.model, step, found)
                part = loss.total * (len(step.y) / len(piece))
                if self.recipe.l1 and is_last:
                    part = part + self.recipe.l1 * size_of_weights(self.plain)
                # Processes average their gradients; images, not processes, weigh alike.
                self.fabric.backward(part * (len(piece) * self.fabric.world_size / piece.whole))
            self.objective.learn(step, found)
            total += part.detach()
            right += (loss.logits.argmax(1) == step.attacked().y).sum()
        return total, right

    def _weights(
        self, parts: list[Step], founds: list[Found | None], now: float
    ) -> contextlib.AbstractContextManager[None]:
        """The weights at which the gradient is taken: those of now, or moved against the loss."""
        spec = self.recipe.awp
        if spec is None or now < spec.from_epoch:
            return contextlib.nullcontext()

        def loss() -> Tensor:
            with self.fabric.autocast():
                pairs = zip(parts, founds, strict=True)
                return torch.stack(
                    [self.objective.loss(self.plain, s, f).total * len(s.y) for s, f in pairs]
                ).sum()

        def mean(grad: Tensor) -> Tensor:
            found: Any = self.fabric.all_reduce(grad, reduce_op="mean")
            return torch.as_tensor(found)

        return moved_weights(self.plain, loss, spec.gamma, mean)

    def _given(self, batches: Batches, piece: Piece, epoch: int, share: float) -> Step:
        """The images of a piece as the objective sees them."""
        batch, now = batches.take(piece.rows), epoch + share
        streams = Streams(self.spec.seed, f"train/{epoch}", batch.ids)
        changed = self.augmentation
        x, mixing = changed.mix(changed(batch.x, streams), streams)
        device = self.fabric.device
        x, y = x.to(device), batch.y.to(device)
        mixed = None
        if mixing is not None:
            mixed = Mixing(mixing.partner.to(device), mixing.weight.to(device))
        threat = self._threat(now)
        strength = 1.0 if threat is None or not self._eps else threat.eps / self._eps
        stretch = 1.0 if self.recipe.step_follows_eps or not strength else 1 / strength
        assert self.twin is not None
        return Step(
            x,
            y,
            threat,
            streams,
            epoch=now,
            strength=strength,
            stretch=stretch,
            smoothing=self.recipe.label_smoothing,
            mixed=mixed,
            places=piece.places,
            memory=self.memory,
            searched=self._searched() if self.objective.needs_threat else None,
        )

    def _searched(self) -> nn.Module:
        assert self.twin is not None
        form = self.twin.refreshed()
        return form if self.recipe.precision == "32-true" else _Autocast(form, self.fabric)

    def _threat(self, epoch: float) -> Threat | None:
        """The adversary at a (fractional) epoch: weaker while eps warms up."""
        recipe = self.recipe
        if recipe.eps_by_epoch:
            epoch = math.floor(epoch)
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
        is_due = number % spec.every == 0 and number >= spec.from_epoch
        if not is_due and number != self.recipe.epochs:
            return {"val_clean": None, "val_robust": None, "val_images": len(val)}
        fabric = self.fabric
        chosen = create_attack(spec.attack.name, **spec.attack.args)
        how = How(self.spec.seed, stop_when_broken=True, workers=1)
        mine = val.select(torch.arange(fabric.global_rank, len(val), fabric.world_size))
        hits = torch.zeros(2, device=fabric.device)
        model = self.plain if self.average is None else self.average.module
        for x, y, ids in mine.batches(256):
            x, y = x.to(fabric.device), y.to(fabric.device)
            with frozen(model), torch.no_grad():
                kept = model(x).argmax(1) == y
            hits[0] += kept.sum()
            if self.threat is not None and kept.any():
                here = ids[kept.cpu()]
                out = run_attack(chosen, model, x[kept], y[kept], self.threat, ids=here, how=how)
                hits[1] += (~out.broken).sum()
        hits = fabric.all_reduce(hits, reduce_op="sum")
        robust = None if self.threat is None else float(hits[1]) / len(val)
        clean = float(hits[0]) / len(val)
        return {"val_clean": clean, "val_robust": robust, "val_images": len(val)}

    def _end(self, row: dict[str, Any], progress: Progress, told: Told) -> None:
        """Ends an epoch: guards, the best checkpoint, the last one, then the readable history."""
        at = self.at
        if has_diverged(at.history, row["loss"]):
            raise RunError(
                f"the loss grew to {row['loss']:.3g} in epoch {row['epoch']} of {self.run.path}, "
                f"from {at.history[0]['loss']:.3g} in the first; the checkpoint of epoch "
                f"{at.epoch} is kept; lower the learning rate (optimiser.lr) and train again"
            )
        pair = (row["val_robust"] or 0.0, row["val_clean"] or 0.0)
        score = pair if self.recipe.validation.by == "robust" else pair[::-1]
        row["best"] = row["val_clean"] is not None and score > at.best_score
        at.epoch, at.history = at.epoch + 1, [*at.history, row]
        if has_collapsed(at.history) and self._collapsed(row, progress):
            return
        if row["best"]:
            at.best_epoch, at.best_score = at.epoch, score
            self._save("best")
        self._save("last")
        if self.fabric.is_global_zero:
            self.run.write_history(at.history)
            told(row)

    def _collapsed(self, row: dict[str, Any], progress: Progress) -> bool:
        """Says so, and goes back to the best epoch if the recipe wants that: then True."""
        at, what = self.at, self.recipe.on_collapse
        words = (
            f"epoch {row['epoch']}: catastrophic overfitting: {row['val_robust']:.0%} under the "
            f"validation attack, {row['train_accuracy']:.0%} under the training attack"
        )
        if what == "stop":
            raise RunError(f"{words}; the best checkpoint is kept; use more attack steps")
        if what == "warn" or at.rollbacks >= MOST_ROLLBACKS:
            at.events = [*at.events, {"kind": "collapse", "epoch": row["epoch"]}]
            progress.log(f"{words}; use more attack steps or on_collapse: rollback")
            return False
        event = {"kind": "rollback", "epoch": row["epoch"], "to": at.best_epoch}
        events = [*at.events, event]
        self.fabric.barrier()
        self.restore({**load_checkpoint(self.run.checkpoint("best")), "events": events})
        progress.log(f"{words}; back to epoch {at.best_epoch} with {self.objective}")
        self._save("last")  # so that a kill from here on goes on from here
        return True

    def _save(self, which: Any) -> None:
        state = self._state()
        if self.fabric.is_global_zero:
            save_checkpoint(self.run.checkpoint(which), state)
        self.fabric.barrier()

    def _state(self) -> dict[str, Any]:
        weights = {"model": self.plain.state_dict()}
        return {
            **(weights if self.average is None else self.average.state()),
            "optimiser": self.optimiser.state_dict(),
            "epoch": self.at.epoch,
            "best_epoch": self.at.best_epoch,
            "best_score": list(self.at.best_score),
            "history": self.at.history,
            "events": self.at.events,
            "memory": self._whole_memory(),
            "spec": digest(self.spec.identity()),
        }

    def _whole_memory(self) -> dict[str, Tensor]:
        """What objectives keep; each process holds the rows of its own images, and zeros."""
        world = self.fabric.world_size
        if world == 1 or not self.memory:
            return self.memory
        whole = {}
        for name, kept in self.memory.items():
            own = torch.zeros_like(kept)
            own[self.fabric.global_rank :: world] = kept[self.fabric.global_rank :: world]
            longest = self.fabric.all_reduce(torch.tensor(len(own)), reduce_op="max")
            most = int(torch.as_tensor(longest))
            own = torch.cat([own, own.new_zeros(most - len(own), *own.shape[1:])])
            whole[name] = torch.as_tensor(self.fabric.all_reduce(own, reduce_op="sum")).cpu()
        return whole


class _Autocast(nn.Module):
    """A network in the precision of training."""

    def __init__(self, inner: nn.Module, fabric: Fabric) -> None:
        super().__init__()
        self.inner, self.fabric = inner, fabric

    def forward(self, x: Tensor) -> Tensor:
        with self.fabric.autocast():
            logits: Tensor = self.inner(x)
        return logits.float()


def size_of_weights(model: nn.Module) -> Tensor:
    """The sum of the sizes of all weights; biases and norms, which have one dimension, are not."""
    return torch.stack([p.abs().sum() for p in model.parameters() if p.ndim > 1]).sum()


def _note(row: dict[str, Any], epochs: int) -> str:
    parts = [f"epoch {row['epoch']}/{epochs}", f"loss {row['loss']:.2f}"]
    if row["val_clean"] is not None:
        parts.append(f"clean {row['val_clean']:.0%}")
    if row["val_robust"] is not None:
        parts.append(f"robust {row['val_robust']:.0%}")
    return "  ".join([*parts, f"{row['images_per_second']:.0f} images/s"])
