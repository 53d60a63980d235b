"""Friendly adversarial training (Zhang et al., arXiv:2002.11242): attacks that stop early."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from buttress.attacks.problem import Seen
from buttress.training.objectives.core import (
    OBJECTIVES,
    Found,
    Loss,
    Step,
    cross_entropy,
    images_of,
)
from buttress.training.objectives.inner import Adversarial, worst_images


@OBJECTIVES.register("fat", paper="arXiv:2002.11242", tags=("adversarial",))
@dataclass(frozen=True)
class FAT(Adversarial):
    r"""Cross-entropy on images that PGD stops moving tau steps after they are misclassified.

    tau is 0 at first and grows by one at each of the epochs ``slower``. BatchNorm statistics move
    once. Departure: no noise is added at each step.
    """

    slower: tuple[float, ...] = (50.0, 90.0)

    def search(self, model: nn.Module, step: Step) -> Found:
        tau = sum(step.epoch >= epoch for epoch in self.slower)
        left = torch.full_like(step.y, tau)  # steps that a misclassified image may still take

        def stay(seen: Seen) -> Tensor:
            is_wrong = seen.logits.argmax(1) != step.y
            holds = is_wrong & (left <= 0)
            left.sub_(is_wrong.long())
            return holds

        return Found(worst_images(model, step, self.pgd(step), stay=stay))

    def loss(self, model: nn.Module, step: Step, found: Found | None) -> Loss:
        logits = model(images_of(found))
        return Loss(cross_entropy(logits, step), logits.detach())
