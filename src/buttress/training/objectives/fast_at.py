"""Fast adversarial training (Wong et al., arXiv:2001.03994): one step from a random start."""

from __future__ import annotations

from dataclasses import dataclass

from buttress.training.objectives.core import OBJECTIVES
from buttress.training.objectives.pgd_at import PGDAT


@OBJECTIVES.register("fast", paper="arXiv:2001.03994", tags=("adversarial",))
@dataclass(frozen=True)
class FastAT(PGDAT):
    r"""Cross-entropy on images one step of 1.25 eps away from a random start in the ball.

    .. math:: \mathrm{CE}(f(x'), y), \quad
              x' = \Pi\bigl(u + 1.25\,\epsilon\, s(\nabla_u \mathrm{CE}(f(u), y))\bigr)

    It is prone to catastrophic overfitting: robust accuracy under stronger attacks falls to zero
    while accuracy under its own attack rises. Departure from the authors' code: the model is in
    evaluation mode while the step is computed.
    """

    steps: int = 1
    rel_step: float = 1.25
