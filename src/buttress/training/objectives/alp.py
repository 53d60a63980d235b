"""Adversarial logit pairing (Kannan et al., arXiv:1803.06373)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from buttress.attacks.targets import TargetRule
from buttress.models.cost import PassCount
from buttress.training.objectives.core import (
    OBJECTIVES,
    AdversarialBatch,
    LossOutput,
    TrainingBatch,
    adversarial_images,
    cross_entropy,
)
from buttress.training.objectives.inner_maximization import AdversarialObjective, run_inner_attack


@OBJECTIVES.register("alp", paper="arXiv:1803.06373", tags=("adversarial",))
@dataclass(frozen=True)
class ALP(AdversarialObjective):
    r"""Cross-entropy on clean and adversarial images, plus a squared distance of their logits.

    .. math:: \tfrac12\bigl(\mathrm{CE}(f(x), y) + \mathrm{CE}(f(x'), y)\bigr)
              + \lambda\, \overline{(f(x) - f(x'))^2}

    The mean is over batch and classes. Both batches pass together in training mode, so BatchNorm
    statistics are updated once. The authors attack with a random target: ``target="random"``.
    """

    loss_passes = 2
    pairing_weight: float = 0.5
    target: TargetRule = "none"

    @property
    def attack_passes(self) -> PassCount:
        return PassCount(self.steps + (self.target != "none"), self.steps)

    def find_adversarial(self, model: nn.Module, batch: TrainingBatch) -> AdversarialBatch:
        return AdversarialBatch(
            run_inner_attack(model, batch, self.create_attack(batch, target=self.target))
        )

    def loss(
        self, model: nn.Module, batch: TrainingBatch, adversarial: AdversarialBatch | None
    ) -> LossOutput:
        clean_logits, adversarial_logits = model(
            torch.cat([batch.x, adversarial_images(adversarial)])
        ).chunk(2)
        cross_entropies = cross_entropy(clean_logits, batch) + cross_entropy(
            adversarial_logits, batch
        )
        total = (
            cross_entropies / 2
            + self.pairing_weight * (clean_logits - adversarial_logits).square().mean()
        )
        return LossOutput(total, adversarial_logits.detach())
