"""Friendly adversarial training (Zhang et al., arXiv:2002.11242): attacks that stop early."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from buttress.attacks.problem import ModelOutput
from buttress.training.objectives.core import (
    OBJECTIVES,
    AdversarialBatch,
    TrainingBatch,
)
from buttress.training.objectives.inner_maximization import AdversarialObjective, run_inner_attack


@OBJECTIVES.register(
    "fat", paper="arXiv:2002.11242", tags=("adversarial",), example_args={"tau_epochs": [4.0, 8.0]}
)
@dataclass(frozen=True)
class FAT(AdversarialObjective):
    r"""Cross-entropy on images that PGD stops moving tau steps after they are misclassified.

    tau is 0 at first and grows by one at each of ``tau_epochs``. Departure: no noise is added at
    each step.
    """

    tau_epochs: tuple[float, ...] = (50.0, 90.0)

    def find_adversarial(self, model: nn.Module, batch: TrainingBatch) -> AdversarialBatch:
        tau = sum(batch.epoch >= epoch for epoch in self.tau_epochs)
        steps_left = torch.full_like(
            batch.y, tau
        )  # steps that a misclassified image may still take

        def freeze_misclassified(output: ModelOutput) -> Tensor:
            is_wrong = output.logits.argmax(1) != batch.y
            is_frozen = is_wrong & (steps_left <= 0)
            steps_left.sub_(is_wrong.long())
            return is_frozen

        return AdversarialBatch(
            run_inner_attack(
                model, batch, self.create_attack(batch), freeze_samples=freeze_misclassified
            )
        )
