"""GAIRAT (Zhang et al., arXiv:2010.01736): weights by how soon an attack succeeds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from buttress.attacks.problem import ModelOutput
from buttress.training.objectives.core import (
    OBJECTIVES,
    AdversarialBatch,
    LossOutput,
    TrainingBatch,
    adversarial_images,
    cross_entropy,
)
from buttress.training.objectives.inner_maximization import AdversarialObjective, run_inner_attack


@OBJECTIVES.register(
    "gairat", paper="arXiv:2010.01736", tags=("adversarial",), example_args={"burn_in": 6.0}
)
@dataclass(frozen=True)
class GAIRAT(AdversarialObjective):
    r"""Weighted cross-entropy on adversarial images; images fooled early have most weight.

    .. math:: \overline{w\, \mathrm{CE}(f(x'), y)}, \quad
              w \propto \tfrac12\bigl(1 + \tanh(\lambda + 5\,(1 - 2\kappa / K))\bigr)

    :math:`\kappa` is the number of the K points of PGD, before each step, that are still classified
    correctly; weights average one. Before the epoch ``burn_in`` all weights are one. Its robust
    accuracy under PGD is higher than under stronger attacks: see its later evaluations.
    """

    shift: float = -1.0
    burn_in: float = 60.0

    def find_adversarial(self, model: nn.Module, batch: TrainingBatch) -> AdversarialBatch:
        kappa = torch.zeros_like(batch.y)

        def count_correct(output: ModelOutput) -> Tensor | None:
            kappa.add_((output.logits.argmax(1) == batch.y).long())
            return None

        x_adv = run_inner_attack(
            model, batch, self.create_attack(batch), freeze_samples=count_correct
        )
        weight = 1 + torch.tanh(self.shift + 5 * (1 - 2 * kappa.to(x_adv.dtype) / self.steps))
        return AdversarialBatch(x_adv, weight / weight.mean())

    def loss(
        self, model: nn.Module, batch: TrainingBatch, adversarial: AdversarialBatch | None
    ) -> LossOutput:
        logits = model(adversarial_images(adversarial))
        losses = cross_entropy(logits, batch, "none")
        if batch.epoch >= self.burn_in:
            assert adversarial is not None
            assert adversarial.sample_weights is not None
            losses = losses * adversarial.sample_weights
        return LossOutput(losses.mean(), logits.detach())
