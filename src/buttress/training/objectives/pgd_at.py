"""Adversarial training (Madry et al., arXiv:1706.06083)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from buttress.training.objectives.core import (
    OBJECTIVES,
    AdversarialBatch,
    LossOutput,
    TrainingBatch,
    adversarial_images,
    cross_entropy,
)
from buttress.training.objectives.inner_maximization import AdversarialObjective


@OBJECTIVES.register("pgd_at", paper="arXiv:1706.06083", tags=("adversarial",))
@dataclass(frozen=True)
class PGDAT(AdversarialObjective):
    r"""Cross-entropy on PGD adversarial images.

    .. math:: \max_{x' \in B_\epsilon(x)} \mathrm{CE}(f(x'), y)

    The attack uses the model in evaluation mode, so it updates no BatchNorm statistics; the
    adversarial batch then passes once in training mode. Any norm.
    """

    def loss(
        self, model: nn.Module, batch: TrainingBatch, adversarial: AdversarialBatch | None
    ) -> LossOutput:
        logits = model(adversarial_images(adversarial))
        return LossOutput(cross_entropy(logits, batch), logits.detach())
