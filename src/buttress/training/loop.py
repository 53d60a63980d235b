"""The training loop: epochs over a dataset on Lightning Fabric, resumable at every epoch."""

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

from buttress.attacks.core import create_attack
from buttress.data import Augmentation, Dataset, Mixing
from buttress.engine.fast_model import FastModel
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.errors import RunError
from buttress.models.eval_mode import eval_mode
from buttress.models.loading.checkpoint import load_checkpoint, save_checkpoint
from buttress.results.run import Run
from buttress.results.run_spec import RunSpec
from buttress.system.files import digest
from buttress.system.progress import Progress, ProgressTask
from buttress.system.rng import SampleRNG, derive_seed, make_generator
from buttress.threats.core import Threat
from buttress.training.averaging import AveragedWeights
from buttress.training.awp import perturbed_weights
from buttress.training.cost import is_validation_epoch
from buttress.training.guards import MAX_ROLLBACKS, has_collapsed, has_diverged
from buttress.training.objectives import OBJECTIVES, AdversarialBatch, Objective, TrainingBatch
from buttress.training.sampler import BatchSampler, BatchShard
from buttress.training.schedules import (
    build_optimizer,
    learning_rate_factor,
    restore_optimizer,
)

EpochCallback = Callable[[dict[str, Any]], None]
FINITE_CHECK_INTERVAL = 20  # steps; on a GPU, reading the loss waits for the device


@dataclass
class TrainingState:
    """Training state that a checkpoint holds beside weights and optimizer."""

    epoch: int = 0
    best_epoch: int = 0
    best_score: tuple[float, float] = (-1.0, -1.0)  # robust and clean accuracy, or the reverse
    history: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)  # events of the guards

    @property
    def num_rollbacks(self) -> int:
        return sum(event["kind"] == "rollback" for event in self.events)


class Trainer:
    """One run in progress. All randomness comes from (seed, epoch, sample id)."""

    def __init__(
        self, run: Run, model: nn.Module, spec: RunSpec, fabric: Fabric, *, compile: bool = False
    ) -> None:
        self.run, self.spec, self.recipe, self.fabric = run, spec, spec.recipe, fabric
        self.module = model
        optimizer = build_optimizer(model, self.recipe.scaled_optimizer())
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]
        shape = (2, spec.in_channels, spec.image_size, spec.image_size)
        probe_images = torch.rand(shape, generator=make_generator("probe images"))
        training_model = FastModel.train_weights(model, probe_images).module
        compiled_model: Any = torch.compile(training_model) if compile else training_model
        self.model, self.optimizer = fabric.setup(compiled_model, optimizer)
        self.objective = self._create_objective(0)
        self.threat = Threat.parse(self.recipe.threat) if self.recipe.threat else None
        self.target_eps = 0.0 if self.threat is None else self.threat.eps
        averaging_spec = self.recipe.weight_averaging
        self.averaged_weights = (
            None if averaging_spec is None else AveragedWeights(model, averaging_spec)
        )
        self.augmentation = Augmentation.from_spec(self.recipe.augmentation)
        self.objective_memory: dict[str, Tensor] = {}
        self.fast_model: FastModel | None = None
        self.state = TrainingState()

    def _create_objective(self, rollbacks: int) -> Objective:
        """Create the recipe's objective, with a longer attack after each collapse."""
        spec = self.recipe.objective
        objective: Objective = OBJECTIVES.create(spec.name, spec.args)
        for _ in range(rollbacks):
            objective = objective.with_stronger_attack()
        return objective

    def load_state(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint."""
        if self.averaged_weights is None:
            self.module.load_state_dict(state["model"])
        else:
            self.averaged_weights.load_state_dict(state)
        restore_optimizer(self.optimizer, state["optimizer"])
        self.objective_memory = dict(state.get("memory", {}))
        best_score, events = tuple(state["best_score"]), list(state.get("events", []))
        self.state = TrainingState(
            state["epoch"], state["best_epoch"], best_score, list(state["history"]), events
        )
        self.objective = self._create_objective(self.state.num_rollbacks)
        if self.fabric.is_global_zero:
            self.run.write_history(self.state.history)

    def fit(
        self, sampler: BatchSampler, val_data: Dataset, progress: Progress, on_epoch: EpochCallback
    ) -> None:
        """Train the remaining epochs."""
        self.optimize_attacks(sampler.first_images(8))
        task = progress.add_task(
            f"train {self.spec.model_name}", self.recipe.epochs * sampler.num_images
        )
        task.resume(self.state.epoch * sampler.num_images)
        try:
            while self.state.epoch < self.recipe.epochs:
                started = time.perf_counter()
                metrics = self.train_epoch(sampler, task)
                train_seconds = time.perf_counter() - started
                metrics |= self._validate(val_data)
                metrics["seconds"] = round(time.perf_counter() - started, 3)
                metrics["images_per_second"] = round(sampler.num_images / train_seconds, 1)
                self._end_epoch(metrics, progress, on_epoch)
                task.advance(0, note=_progress_note(metrics, self.recipe.epochs))
        finally:
            task.close()

    def optimize_attacks(self, images: Tensor) -> None:
        """Build the model that inner attacks use; ``images`` (N, C, H, W) are to compare on."""
        self.fast_model = FastModel.share_weights(self.module, images.to(self.fabric.device))

    def train_epoch(self, sampler: BatchSampler, task: ProgressTask) -> dict[str, Any]:
        """Train the current epoch, without validation; return its metrics."""
        epoch, fabric = self.state.epoch, self.fabric
        # Dropout draws from the global generator; seeded per epoch, a resumed epoch is the same.
        torch.manual_seed(derive_seed(self.spec.seed, "epoch", epoch, *self._rank_salt()))
        self.model.train()
        sums = torch.zeros(3, device=fabric.device)  # loss, correct images, images
        steps, started, images_done = sampler.steps_per_epoch, time.perf_counter(), 0
        for index, indices in enumerate(sampler.epoch_batches(epoch)):
            shard = sampler.shard(indices, fabric.global_rank, fabric.world_size)
            repeats = self.objective.repeats * self.recipe.augmentation_repeats
            for repeat in range(repeats):
                epoch_fraction = (index + repeat / repeats) / steps
                self._set_learning_rate(epoch + epoch_fraction)
                copy = repeat // self.objective.repeats
                loss, correct = self._train_step(sampler, shard, epoch, epoch_fraction, copy)
            sums += torch.stack([loss * len(shard), correct, correct.new_tensor(len(shard))])
            if (
                fabric.device.type == "cpu"
                or index % FINITE_CHECK_INTERVAL == FINITE_CHECK_INTERVAL - 1
            ):
                self._require_finite(float(sums[0]))
            images_done += len(indices)
            images_per_second = images_done / (time.perf_counter() - started)
            task.advance(
                sampler.num_images / steps, f"epoch {epoch + 1}  {images_per_second:.0f} images/s"
            )
        sums = fabric.all_reduce(sums, reduce_op="sum")
        mean_loss, accuracy = float(sums[0] / sums[2]), float(sums[1] / sums[2])
        self._require_finite(mean_loss)
        lr = self.optimizer.param_groups[0]["lr"]
        return {"epoch": epoch + 1, "lr": lr, "loss": mean_loss, "train_accuracy": accuracy}

    def _rank_salt(self) -> tuple[int, ...]:
        """Salt of a rank's dropout seed; rank 0 has none."""
        return (self.fabric.global_rank,) if self.fabric.global_rank else ()

    def _require_finite(self, loss: float) -> None:
        """Raise `RunError` if the loss is not finite."""
        if math.isfinite(loss):
            return
        raise RunError(
            f"the loss is not finite in epoch {self.state.epoch + 1} of {self.run.path}. The "
            f"checkpoint of epoch {self.state.epoch} is kept; lower the learning rate "
            "(optimizer.lr) and train again"
        )

    def _train_step(
        self,
        sampler: BatchSampler,
        shard: BatchShard,
        epoch: int,
        epoch_fraction: float,
        copy: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Take one optimizer step; return this process's loss and number of correct images.

        ``copy`` numbers the steps on this batch with repeated augmentation.
        """
        self.optimizer.zero_grad(set_to_none=True)
        micro_batches = [
            self._prepare_batch(sampler, p, epoch, epoch_fraction, copy)
            for p in shard.split(self.recipe.accumulation_steps)
        ]
        adversarial = [self.objective.find_adversarial(self.module, b) for b in micro_batches]
        with self._awp_context(micro_batches, adversarial, epoch + epoch_fraction):
            total, correct = self._backward(micro_batches, adversarial, shard)
            if self.recipe.clip_grad_norm is not None:
                self.fabric.clip_gradients(
                    self.model, self.optimizer, max_norm=self.recipe.clip_grad_norm
                )
            self.optimizer.step()
        if self.averaged_weights is not None:
            self.averaged_weights.update(epoch + epoch_fraction)
        return total, correct

    def _backward(
        self,
        micro_batches: list[TrainingBatch],
        adversarial: list[AdversarialBatch | None],
        shard: BatchShard,
    ) -> tuple[Tensor, Tensor]:
        total = torch.zeros((), device=self.fabric.device)
        correct = torch.zeros((), device=self.fabric.device)
        for number, (batch, adversarial_batch) in enumerate(
            zip(micro_batches, adversarial, strict=True)
        ):
            is_last = number == len(micro_batches) - 1
            with self.fabric.no_backward_sync(self.model, enabled=not is_last):
                output = self.objective.loss(self.model, batch, adversarial_batch)
                weighted_loss = output.loss * (len(batch.y) / len(shard))
                if self.recipe.l1_weight and is_last:
                    weighted_loss = weighted_loss + self.recipe.l1_weight * weight_l1_norm(
                        self.module
                    )
                # DDP averages gradients over processes; every image must have the same weight.
                self.fabric.backward(
                    weighted_loss * (len(shard) * self.fabric.world_size / shard.batch_size)
                )
            self.objective.after_backward(batch, adversarial_batch)
            total += weighted_loss.detach()
            correct += (output.logits.argmax(1) == batch.with_attack_labels().y).sum()
        return total, correct

    def _awp_context(
        self,
        micro_batches: list[TrainingBatch],
        adversarial: list[AdversarialBatch | None],
        epoch: float,
    ) -> contextlib.AbstractContextManager[None]:
        """Context with the weights for the gradient: the current ones, or perturbed by AWP."""
        spec = self.recipe.awp
        if spec is None or epoch < spec.from_epoch:
            return contextlib.nullcontext()

        def loss() -> Tensor:
            with self.fabric.autocast():
                pairs = zip(micro_batches, adversarial, strict=True)
                return torch.stack(
                    [self.objective.loss(self.module, b, adv).loss * len(b.y) for b, adv in pairs]
                ).sum()

        def all_reduce_mean(grad: Tensor) -> Tensor:
            averaged: Any = self.fabric.all_reduce(grad, reduce_op="mean")
            return torch.as_tensor(averaged)

        return perturbed_weights(self.module, loss, spec.gamma, all_reduce_mean)

    def _prepare_batch(
        self,
        sampler: BatchSampler,
        shard: BatchShard,
        epoch: int,
        epoch_fraction: float,
        copy: int = 0,
    ) -> TrainingBatch:
        """Load and augment the images of a micro-batch; the first of several copies stays clean."""
        batch, fractional_epoch = sampler.load(shard.indices), epoch + epoch_fraction
        purpose = f"train/{epoch}" + (f"/copy {copy}" if copy else "")
        streams = SampleRNG(self.spec.seed, purpose, batch.ids)
        is_clean_copy = self.recipe.augmentation_repeats > 1 and copy == 0
        augmentation = Augmentation() if is_clean_copy else self.augmentation
        x, mixing = augmentation.mix(augmentation(batch.x, streams), streams)
        device = self.fabric.device
        x, y = x.to(device), batch.y.to(device)
        mixing_on_device = None
        if mixing is not None:
            mixing_on_device = Mixing(mixing.partner.to(device), mixing.weight.to(device))
        threat = self._threat_at(fractional_epoch)
        eps_fraction = (
            1.0 if threat is None or not self.target_eps else threat.eps / self.target_eps
        )
        step_scale = (
            1.0 if self.recipe.scale_step_with_eps or not eps_fraction else 1 / eps_fraction
        )
        return TrainingBatch(
            x,
            y,
            threat,
            streams,
            epoch=fractional_epoch,
            eps_fraction=eps_fraction,
            step_scale=step_scale,
            label_smoothing=self.recipe.label_smoothing,
            mixing=mixing_on_device,
            batch_positions=shard.batch_positions,
            memory=self.objective_memory,
            attack_model=self._attack_model() if self.objective.needs_threat else None,
        )

    def _attack_model(self) -> nn.Module:
        assert self.fast_model is not None
        model = self.fast_model.refresh()
        is_float32 = self.recipe.precision == "32-true"
        return model if is_float32 else AutocastModel(model, self.fabric)

    def _threat_at(self, epoch: float) -> Threat | None:
        """The threat model at a (fractional) epoch, with eps scaled during warm-up."""
        recipe = self.recipe
        if recipe.eps_per_epoch:
            epoch = math.floor(epoch)
        epochs_since_start, warmup_epochs = epoch - recipe.eps_zero_epochs, recipe.eps_warmup_epochs
        if self.threat is None or epochs_since_start >= warmup_epochs:
            return self.threat
        eps_fraction = epochs_since_start / warmup_epochs if epochs_since_start > 0 else 0.0
        if recipe.eps_warmup == "sine":
            eps_fraction = (1 + math.sin(math.pi * (eps_fraction - 0.5))) / 2
        return self.threat.scaled(eps_fraction)

    def _set_learning_rate(self, epoch: float) -> None:
        factor = learning_rate_factor(self.recipe.schedule, epoch, self.recipe.epochs)
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base_lr * factor

    def _validate(self, val_data: Dataset) -> dict[str, Any]:
        """Compute clean and robust accuracy on validation images."""
        spec, epoch = self.recipe.validation, self.state.epoch + 1
        if not is_validation_epoch(self.recipe, epoch):
            return {"val_clean": None, "val_robust": None, "val_images": len(val_data)}
        fabric = self.fabric
        attack = create_attack(spec.attack.name, **spec.attack.args)
        options = AttackOptions(self.spec.seed, stop_when_fooled=True, workers=1)
        rank_data = val_data.select(
            torch.arange(fabric.global_rank, len(val_data), fabric.world_size)
        )
        counts = torch.zeros(2, device=fabric.device)
        model = (
            self.module if self.averaged_weights is None else self.averaged_weights.evaluated_module
        )
        for x, y, ids in rank_data.batches(256):
            x, y = x.to(fabric.device), y.to(fabric.device)
            with eval_mode(model), torch.no_grad():
                is_correct = model(x).argmax(1) == y
            counts[0] += is_correct.sum()
            if self.threat is not None and is_correct.any():
                correct_ids = ids[is_correct.cpu()]
                outcome = run_attack(
                    attack,
                    model,
                    x[is_correct],
                    y[is_correct],
                    self.threat,
                    ids=correct_ids,
                    options=options,
                )
                counts[1] += (~outcome.fooled).sum()
        counts = fabric.all_reduce(counts, reduce_op="sum")
        robust = None if self.threat is None else float(counts[1]) / len(val_data)
        clean = float(counts[0]) / len(val_data)
        return {"val_clean": clean, "val_robust": robust, "val_images": len(val_data)}

    def _end_epoch(
        self, metrics: dict[str, Any], progress: Progress, on_epoch: EpochCallback
    ) -> None:
        """End an epoch: run the guards, save best and last checkpoint, write the history."""
        state = self.state
        if has_diverged(state.history, metrics["loss"]):
            raise RunError(
                f"training diverged: the loss rose to {metrics['loss']:.3g} in epoch "
                f"{metrics['epoch']} of {self.run.path} from {state.history[0]['loss']:.3g} "
                f"in the first. The checkpoint of epoch {state.epoch} is kept; lower the "
                "learning rate (optimizer.lr) and train again"
            )
        robust_and_clean = (metrics["val_robust"] or 0.0, metrics["val_clean"] or 0.0)
        score = (
            robust_and_clean
            if self.recipe.validation.select_by == "robust"
            else robust_and_clean[::-1]
        )
        metrics["best"] = metrics["val_clean"] is not None and score > state.best_score
        state.epoch, state.history = state.epoch + 1, [*state.history, metrics]
        if has_collapsed(state.history) and self._handle_collapse(metrics, progress):
            return
        if metrics["best"]:
            state.best_epoch, state.best_score = state.epoch, score
            self._save_checkpoint("best")
        self._save_checkpoint("last")
        if self.fabric.is_global_zero:
            self.run.write_history(state.history)
            on_epoch(metrics)

    def _handle_collapse(self, metrics: dict[str, Any], progress: Progress) -> bool:
        """Report catastrophic overfitting; return True if the best epoch was restored."""
        state, action = self.state, self.recipe.on_collapse
        message = (
            f"epoch {metrics['epoch']}: catastrophic overfitting: robust accuracy "
            f"{metrics['val_robust']:.0%} on validation images, "
            f"{metrics['train_accuracy']:.0%} on training images under the training attack"
        )
        if action == "stop":
            raise RunError(
                f"{message}. Training stopped; the best checkpoint is kept. Use more attack steps"
            )
        if action == "warn" or state.num_rollbacks >= MAX_ROLLBACKS:
            state.events = [*state.events, {"kind": "collapse", "epoch": metrics["epoch"]}]
            progress.log(f"{message}; use more attack steps or set on_collapse: rollback")
            return False
        event = {"kind": "rollback", "epoch": metrics["epoch"], "to": state.best_epoch}
        events = [*state.events, event]
        self.fabric.barrier()
        self.load_state({**load_checkpoint(self.run.checkpoint("best")), "events": events})
        progress.log(
            f"{message}; restored epoch {state.best_epoch} and continuing with {self.objective}"
        )
        self._save_checkpoint("last")  # so that an interrupted run resumes from here
        return True

    def _save_checkpoint(self, name: Any) -> None:
        state = self._checkpoint_content()
        if self.fabric.is_global_zero:
            save_checkpoint(self.run.checkpoint(name), state)
        self.fabric.barrier()

    def _checkpoint_content(self) -> dict[str, Any]:
        weights = {"model": self.module.state_dict()}
        return {
            **(weights if self.averaged_weights is None else self.averaged_weights.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.state.epoch,
            "best_epoch": self.state.best_epoch,
            "best_score": list(self.state.best_score),
            "history": self.state.history,
            "events": self.state.events,
            "memory": self._gather_objective_memory(),
            "spec": digest(self.spec.identity()),
        }

    def _gather_objective_memory(self) -> dict[str, Tensor]:
        """Gather the memory of objectives; each process holds the rows of its own images."""
        world_size = self.fabric.world_size
        if world_size == 1 or not self.objective_memory:
            return self.objective_memory
        gathered = {}
        for name, tensor in self.objective_memory.items():
            rank_part = torch.zeros_like(tensor)
            rank_part[self.fabric.global_rank :: world_size] = tensor[
                self.fabric.global_rank :: world_size
            ]
            longest = self.fabric.all_reduce(torch.tensor(len(rank_part)), reduce_op="max")
            max_length = int(torch.as_tensor(longest))
            rank_part = torch.cat(
                [rank_part, rank_part.new_zeros(max_length - len(rank_part), *rank_part.shape[1:])]
            )
            gathered[name] = torch.as_tensor(
                self.fabric.all_reduce(rank_part, reduce_op="sum")
            ).cpu()
        return gathered


class AutocastModel(nn.Module):
    """A model that runs in the precision of training."""

    def __init__(self, inner: nn.Module, fabric: Fabric) -> None:
        super().__init__()
        self.inner, self.fabric = inner, fabric

    def forward(self, x: Tensor) -> Tensor:
        with self.fabric.autocast():
            logits: Tensor = self.inner(x)
        return logits.float()


def weight_l1_norm(model: nn.Module) -> Tensor:
    """L1 norm of all weights with two or more dimensions (no biases, no norm layers)."""
    return torch.stack([p.abs().sum() for p in model.parameters() if p.ndim > 1]).sum()


def _progress_note(metrics: dict[str, Any], epochs: int) -> str:
    parts = [f"epoch {metrics['epoch']}/{epochs}", f"loss {metrics['loss']:.2f}"]
    if metrics["val_clean"] is not None:
        parts.append(f"clean {metrics['val_clean']:.0%}")
    if metrics["val_robust"] is not None:
        parts.append(f"robust {metrics['val_robust']:.0%}")
    return "  ".join([*parts, f"{metrics['images_per_second']:.0f} images/s"])
