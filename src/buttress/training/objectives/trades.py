"""TRADES (Zhang et al., arXiv:1901.08573): clean loss plus a robustness regularizer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from buttress.attacks.losses import kl_divergence
from buttress.attacks.pgd import StartRule
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


@OBJECTIVES.register("trades", paper="arXiv:1901.08573", tags=("adversarial",))
@dataclass(frozen=True)
class TRADES(AdversarialObjective):
    r"""Cross-entropy on clean images plus beta times the KL divergence to adversarial predictions.

    .. math:: \mathrm{CE}(f(x), y) + \beta\, \mathrm{KL}(p(x) \,\Vert\, p(x'))

    x' maximizes the same KL from a start with Gaussian noise of 0.001. Both batches pass once in
    training mode, so BatchNorm statistics are updated twice. The logged accuracy is clean accuracy.
    """

    batchnorm_updates = loss_passes = 2
    start: StartRule = "gaussian"
    beta: float = 6.0

    @property
    def attack_passes(self) -> PassCount:
        return PassCount(self.steps + 1, self.steps)  # one for the clean logits

    def find_adversarial(self, model: nn.Module, batch: TrainingBatch) -> AdversarialBatch:
        return AdversarialBatch(
            run_inner_attack(model, batch, self.create_attack(batch, loss="kl"))
        )

    def loss(
        self, model: nn.Module, batch: TrainingBatch, adversarial: AdversarialBatch | None
    ) -> LossOutput:
        clean_logits = model(batch.x)
        divergence = kl_divergence(model(adversarial_images(adversarial)), clean_logits).mean()
        return LossOutput(
            cross_entropy(clean_logits, batch) + self.beta * divergence, clean_logits.detach()
        )
