"""A training loss. The loop knows none of them; an objective knows nothing of the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.data import Mixing
from buttress.registry import Registry
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import Threat


@dataclass(frozen=True)
class TrainingBatch:
    """What an objective is given: a batch, and the adversary to train against."""

    x: Tensor  # (N, C, H, W) in [0, 1]
    y: Tensor  # (N,)
    threat: Threat | None
    streams: SampleRNG  # of these samples in this epoch
    epoch: float = 0.0  # that are done, with the share of the current one
    eps_fraction: float = 1.0  # of the adversary while eps warms up, as a share of its eps
    step_scale: float = 1.0  # of the attack's steps, where they do not shrink with eps
    label_smoothing: float = 0.0  # share of a label that is spread evenly over all classes
    mixing: Mixing | None = None  # with whom each image was mixed
    batch_positions: Tensor | None = None  # (N,) where the images stand in the whole batch
    memory: dict[str, Tensor] = field(default_factory=dict)  # what an objective keeps: by place
    attack_model: nn.Module | None = None  # the network that attacks see, if it is another form

    def with_attack_labels(self) -> TrainingBatch:
        """The same for an attack, which aims away from the label with the larger share."""
        if self.mixing is None:
            return self
        keeps_own_label = self.mixing.weight >= 0.5
        return replace(
            self, y=torch.where(keeps_own_label, self.y, self.y[self.mixing.partner]), mixing=None
        )


class AdversarialBatch(NamedTuple):
    """What the attack of an objective found: images, and in what they weigh."""

    x: Tensor
    sample_weights: Tensor | None = None  # (N,)


class LossOutput(NamedTuple):
    """What an objective returns: what to minimise, and the logits whose accuracy is logged."""

    loss: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Objective(ABC):
    """The arguments of a training loss, and its formula: an attack, then a loss on what it found.

    The two are apart so that several losses can be taken of one attack, at other weights.
    """

    needs_threat = False
    needs_extra_data = False  # more images than the data set has
    repeats = 1  # steps of the optimiser on each batch

    def find_adversarial(self, model: nn.Module, batch: TrainingBatch) -> AdversarialBatch | None:
        """The images to train on, with the model as it is; None if these are the given ones."""
        return None

    @abstractmethod
    def loss(
        self, model: nn.Module, batch: TrainingBatch, adversarial: AdversarialBatch | None
    ) -> LossOutput:
        """The loss of a batch, with the model in training mode."""

    def after_backward(self, batch: TrainingBatch, adversarial: AdversarialBatch | None) -> None:  # noqa: B027 - most learn nothing
        """Is called after the backward pass, for objectives that use its gradients."""

    def with_stronger_attack(self) -> Objective:
        """The same with a longer attack, for when training has learnt to deceive this one."""
        return self


def adversarial_images(adversarial: AdversarialBatch | None) -> Tensor:
    """The images that an attack found, where there must have been one."""
    assert adversarial is not None
    return adversarial.x


def cross_entropy(logits: Tensor, batch: TrainingBatch, reduction: str = "mean") -> Tensor:
    """The cross-entropy that is trained on; attacks use the plain one.

    Logits of several forms of the batch, one after the other, are all held against its labels.
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


OBJECTIVES: Registry[type[Objective]] = Registry("objective")
