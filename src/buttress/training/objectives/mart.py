"""MART (Wang et al., ICLR 2020): more weight on misclassified clean images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from buttress.attacks.pgd import StartRule
from buttress.training.objectives.core import (
    OBJECTIVES,
    AdversarialBatch,
    LossOutput,
    TrainingBatch,
    adversarial_images,
)
from buttress.training.objectives.inner_maximization import AdversarialObjective

TINY = 1e-12


@OBJECTIVES.register("mart", tags=("adversarial",))
@dataclass(frozen=True)
class MART(AdversarialObjective):
    r"""Boosted cross-entropy on adversarial images, and a KL term weighted by clean errors.

    .. math:: -\log p_y(x') - \log\bigl(1 - \max_{k \ne y} p_k(x')\bigr)
              + \lambda\, \mathrm{KL}(p(x) \,\Vert\, p(x'))\,(1 - p_y(x))

    x' is PGD's on the cross-entropy from a start with Gaussian noise of 0.001. BatchNorm statistics
    are updated twice: for x' and for x. The constants that keep logarithms finite are the authors'.
    """

    batchnorm_updates = loss_passes = 2
    start: StartRule = "gaussian"
    beta: float = 6.0

    def loss(
        self, model: nn.Module, batch: TrainingBatch, adversarial: AdversarialBatch | None
    ) -> LossOutput:
        clean_logits, adversarial_logits = model(batch.x), model(adversarial_images(adversarial))
        p, q, y = clean_logits.softmax(1), adversarial_logits.softmax(1), batch.y[:, None]
        best_other = q.scatter(1, y, -1.0).amax(1)  # the largest probability of another class
        boosted_ce = -adversarial_logits.log_softmax(1).gather(1, y)[:, 0] - torch.log(
            1.0001 - best_other + TINY
        )
        divergence = (p * (torch.log(p + TINY) - torch.log(q + TINY))).sum(1)
        clean_error = 1.0000001 - p.gather(1, y)[:, 0]
        total = boosted_ce.mean() + self.beta * (divergence * clean_error).mean()
        return LossOutput(total, adversarial_logits.detach())
