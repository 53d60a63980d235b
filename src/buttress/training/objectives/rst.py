"""Robust self-training (Carmon et al., arXiv:1905.13736): TRADES with pseudo-labeled images."""

from __future__ import annotations

from dataclasses import dataclass

from buttress.training.objectives.core import OBJECTIVES
from buttress.training.objectives.trades import TRADES


@OBJECTIVES.register("rst", paper="arXiv:1905.13736", tags=("adversarial",))
@dataclass(frozen=True)
class RST(TRADES):
    r"""TRADES on batches with a fraction of extra, pseudo-labeled images.

    .. math:: \frac{1}{|B|} \sum_{(x, y) \in B} \mathrm{CE}(f(x), y)
              + \beta\, \mathrm{KL}(p(x) \,\Vert\, p(x'))

    Real and extra images count alike; the recipe's ``extra_data`` says where these come from and
    what fraction of a batch they are, a half in the paper. BatchNorm statistics are updated twice.
    """

    needs_extra_data = True
