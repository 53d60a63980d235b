"""The Rademacher complexity of linear classifiers, with and without an adversary, by Monte Carlo.

The adversarial class is that of Yin, Ramchandran and Bartlett, "Rademacher Complexity for
Adversarially Robust Generalization", arXiv:1810.11914: the margin of a linear classifier after the
worst change of each coordinate by at most eps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

KHINTCHINE_CONSTANT = 1 / math.sqrt(2)  # E|sum of n signs| >= sqrt(n / 2)
LEMMA_CONSTANT = (
    KHINTCHINE_CONSTANT / 2
)  # the lemma's c, whose existence alone is stated: see `lemma_limits`


class ComplexityEstimate(NamedTuple):
    """A mean over draws of signs, and its standard error."""

    mean: float
    error: float
    per_draw: Tensor  # (S,)


class ComplexityLimits(NamedTuple):
    """What the lemma allows for the adversarial complexity, and the term that holds dimension."""

    lower: float
    upper: float
    dimension_term: float


def dual_exponent(p: float) -> float:
    """The q with 1/p + 1/q = 1."""
    return math.inf if p == 1 else 1.0 if math.isinf(p) else p / (p - 1)


def adversarial_supremum(
    sums: Tensor, total: Tensor, *, eps: float, radius: float, p: float
) -> Tensor:
    r"""The largest :math:`\langle w, u \rangle - \epsilon s \|w\|_1` over :math:`\|w\|_p \le T`.

    With :math:`u = \sum_i \sigma_i y_i x_i` (``sums``, (..., d)) and :math:`s = \sum_i \sigma_i`
    (``total``, (...)) this is the sum in the complexity of the adversarial class, since the worst
    change of a point costs :math:`\epsilon \|w\|_1`. The best sign of each weight is that of its
    :math:`u_j`; what is left, :math:`\sum_j |w_j| (|u_j| - \epsilon s)`, pays only where the
    bracket is positive, and Hölder's inequality with equality gives

    .. math:: T\, \bigl\| (|u| - \epsilon s)_+ \bigr\|_q .

    For s > 0 this is a soft threshold, for s < 0 every coordinate grows by :math:`\epsilon |s|`:
    there the dimension comes in, as :math:`\|1\|_q = d^{1/q}`.
    """
    gains = (sums.abs() - eps * total.unsqueeze(-1)).clamp_min(0)
    return radius * torch.linalg.vector_norm(gains, ord=dual_exponent(p), dim=-1)


def rademacher_complexity(
    points: Tensor, signs: Tensor, *, eps: float, radius: float, p: float
) -> ComplexityEstimate:
    """The empirical Rademacher complexity on points (n, d), labels included, from signs (S, n).

    Each row of signs is used with its opposite too, which leaves the mean right and makes it surer.
    """
    sums, total = signs @ points, signs.sum(1)
    values_pair = [
        adversarial_supremum(u, s, eps=eps, radius=radius, p=p)
        for u, s in ((sums, total), (-sums, -total))
    ]
    values = (values_pair[0] + values_pair[1]) / (2 * len(points))
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return ComplexityEstimate(float(values.mean()), error, values)


def lemma_limits(
    natural: float, *, count: int, width: int, eps: float, radius: float, p: float
) -> ComplexityLimits:
    r"""The two sides of the lemma around the adversarial complexity.

    .. math:: \tfrac{c}{2} (R + D) \le \hat R \le R + D, \qquad D = \epsilon T d^{1-1/p} / \sqrt n

    The lemma says that some c in (0, 1) does; :math:`c = 1 / (2 \sqrt 2)` does. Averaging over
    :math:`\pm\sigma`, the norm of a sum gives :math:`\hat R \ge R`, and dropping the half with the
    soft threshold gives :math:`\hat R \ge \epsilon T d^{1/q} E|s| / (2n)`, where :math:`E|s| \ge
    \sqrt{n/2}`. So :math:`\hat R \ge c \max(R, D) \ge \tfrac{c}{2} (R + D)`.
    """
    term = eps * radius * width ** (1 / dual_exponent(p)) / math.sqrt(count)
    return ComplexityLimits(LEMMA_CONSTANT / 2 * (natural + term), natural + term, term)
