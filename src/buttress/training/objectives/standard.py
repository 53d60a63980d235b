"""Standard training, without an adversary."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from buttress.training.objectives.core import (
    OBJECTIVES,
    AdversarialBatch,
    LossOutput,
    Objective,
    TrainingBatch,
    cross_entropy,
)


@OBJECTIVES.register("standard", tags=("natural",))
@dataclass(frozen=True)
class StandardTraining(Objective):
    r"""Cross-entropy on clean images: :math:`\mathrm{CE}(f(x), y)`."""

    def loss(
        self, model: nn.Module, batch: TrainingBatch, adversarial: AdversarialBatch | None
    ) -> LossOutput:
        logits = model(batch.x)
        return LossOutput(cross_entropy(logits, batch), logits.detach())
