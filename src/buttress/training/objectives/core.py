"""Base classes of training objectives; the loop and the objectives are independent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.data import Mixing
from buttress.models.cost import PassCount
from buttress.registry import Registry
from buttress.system.rng import SampleRNG
from buttress.threats.core import Threat


@dataclass(frozen=True)
class TrainingBatch:
    """Input of an objective: a batch, and the threat model to train against."""

    x: Tensor  # (N, C, H, W) in [0, 1]
    y: Tensor  # (N,)
    threat: Threat | None
    streams: SampleRNG  # of these samples in this epoch
    epoch: float = 0.0  # finished epochs, with the fraction of the current one
    eps_fraction: float = 1.0  # of the full eps, while it warms up
    step_scale: float = 1.0  # of the attack's steps, if they do not shrink with eps
    label_smoothing: float = 0.0
    mixing: Mixing | None = None  # MixUp or CutMix partners of the images
    batch_positions: Tensor | None = None  # (N,) positions of the images in the whole batch
    # State of an objective by position in the batch, kept over batches and in checkpoints.
    memory: dict[str, Tensor] = field(default_factory=dict)
    attack_model: nn.Module | None = None  # inference-optimized model for attacks, if there is one

    def with_attack_labels(self) -> TrainingBatch:
        """Return the batch with the label of larger weight, as attacks use it."""
        if self.mixing is None:
            return self
        keeps_own_label = self.mixing.weight >= 0.5
        return replace(
            self, y=torch.where(keeps_own_label, self.y, self.y[self.mixing.partner]), mixing=None
        )


class AdversarialBatch(NamedTuple):
    """Result of an objective's attack: adversarial images and sample weights."""

    x: Tensor
    sample_weights: Tensor | None = None  # (N,)


class LossOutput(NamedTuple):
    """Output of an objective: the loss, and the logits whose accuracy is logged."""

    loss: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Objective(ABC):
    """A training objective: an inner attack, then a loss on its adversarial images.

    The two are separate so that several losses can use one attack, at perturbed weights. Tests
    and documentation read the members below of every registered objective, costs of a study too.
    """

    needs_threat = False
    needs_extra_data = False  # whether it needs extra images
    repeats = 1  # optimizer steps per batch
    batchnorm_updates = 1  # updates of BatchNorm's running statistics per optimizer step

    @property
    def attack_passes(self) -> PassCount:
        """Passes per image of `find_adversarial`, if eps is not zero."""
        return PassCount()

    @property
    def loss_passes(self) -> int:
        """Forward passes per image of `loss`, each with a backward pass to the weights."""
        return 1

    def find_adversarial(self, model: nn.Module, batch: TrainingBatch) -> AdversarialBatch | None:
        """Find adversarial images for the current model; None if the clean ones are used."""
        return None

    @abstractmethod
    def loss(
        self, model: nn.Module, batch: TrainingBatch, adversarial: AdversarialBatch | None
    ) -> LossOutput:
        """The loss of a batch, with the model in training mode."""

    def after_backward(self, batch: TrainingBatch, adversarial: AdversarialBatch | None) -> None:  # noqa: B027 - most learn nothing
        """Called after the backward pass, for objectives that use its gradients."""

    def with_stronger_attack(self) -> Objective:
        """Return the objective with a longer attack, used after catastrophic overfitting."""
        return self


def adversarial_images(adversarial: AdversarialBatch | None) -> Tensor:
    """Return the adversarial images; raise if there was no attack."""
    assert adversarial is not None
    return adversarial.x


def cross_entropy(logits: Tensor, batch: TrainingBatch, reduction: str = "mean") -> Tensor:
    """Cross-entropy with label smoothing and mixing; attacks use the plain one.

    Logits of several versions of the batch, concatenated, are all compared with its labels.
    """
    num_copies = len(logits) // len(batch.y)
    loss = _per_sample_cross_entropy(logits, batch.y.repeat(num_copies), batch.label_smoothing)
    if batch.mixing is not None:
        own_weight = batch.mixing.weight.to(loss.dtype).repeat(num_copies)
        partner_loss = _per_sample_cross_entropy(
            logits, batch.y[batch.mixing.partner].repeat(num_copies), batch.label_smoothing
        )
        loss = own_weight * loss + (1 - own_weight) * partner_loss
    return loss.mean() if reduction == "mean" else loss


def _per_sample_cross_entropy(logits: Tensor, y: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)


# Entries may have `example_args`: arguments that suit a training of a few epochs on digits, where
# the defaults do not. Tests and the measured table of the documentation train with them.
OBJECTIVES: Registry[type[Objective]] = Registry("objective")


def example_args(name: str) -> dict[str, Any]:
    """Arguments for a short training with an objective."""
    return dict(OBJECTIVES.entry(name).metadata.get("example_args", {}))
