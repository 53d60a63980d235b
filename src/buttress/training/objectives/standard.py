"""Training without an adversary."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from buttress.training.objectives.core import (
    OBJECTIVES,
    Found,
    Loss,
    Objective,
    Step,
    cross_entropy,
)


@OBJECTIVES.register("standard", tags=("natural",))
@dataclass(frozen=True)
class Standard(Objective):
    r"""Cross-entropy on the images as they are: :math:`\mathrm{CE}(f(x), y)`."""

    def loss(self, model: nn.Module, step: Step, found: Found | None) -> Loss:
        logits = model(step.x)
        return Loss(cross_entropy(logits, step), logits.detach())
