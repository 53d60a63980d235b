"""Adversarial training (Madry et al., arXiv:1706.06083)."""

from __future__ import annotations

from dataclasses import dataclass

from buttress.training.objectives.core import OBJECTIVES
from buttress.training.objectives.inner_maximization import AdversarialObjective


@OBJECTIVES.register("pgd_at", paper="arXiv:1706.06083", tags=("adversarial",))
@dataclass(frozen=True)
class PGDAT(AdversarialObjective):
    r"""Cross-entropy on PGD adversarial images.

    .. math:: \max_{x' \in B_\epsilon(x)} \mathrm{CE}(f(x'), y)

    The attack uses the model in evaluation mode, so it updates no BatchNorm statistics; the
    adversarial batch then passes once in training mode. Any threat model.
    """
