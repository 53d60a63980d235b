"""Losses that attacks maximize: functions of logits, one value per sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

TINY = 1e-12


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    r"""Cross-entropy: :math:`-\log p_y`."""
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    r"""Logit margin: :math:`\max_{k \ne y} z_k - z_y`, positive where the prediction is wrong."""
    return max_other_logit(logits, y) - label_logit(logits, y)


def margin_if_finite(logits: Tensor, y: Tensor) -> Tensor:
    """The margin, +inf where a logit is not finite: such an output counts as fooled."""
    margins = margin(logits, y)
    if logits.device.type == "cpu" and math.isfinite(float(logits.sum())):
        return margins  # a sum is finite only if all logits are
    return margins.where(logits.isfinite().all(1), torch.inf)


def is_misclassified(logits: Tensor, y: Tensor) -> Tensor:
    """Which predictions are wrong; logits that are not finite are no prediction of the label."""
    return (logits.argmax(1) != y) | ~logits.isfinite().all(1)


def very_confident_logits(like: Tensor, y: Tensor) -> Tensor:
    """(N, K) finite logits with so small a margin that they are better than no point."""
    lowest = like.new_full((len(y), like.shape[1]), torch.finfo(like.dtype).min / 2)
    return lowest.scatter_(1, y[:, None], 0.0)


def probability_margin(logits: Tensor, y: Tensor) -> Tensor:
    """The margin on probabilities, between -1 and 1."""
    return margin(logits.softmax(1), y)


def kl_divergence(logits: Tensor, reference: Tensor) -> Tensor:
    """KL(p(reference) || p): how far the prediction moved from that of the reference logits."""
    log_p = F.log_softmax(reference, 1)
    return (log_p.exp() * (log_p - F.log_softmax(logits, 1))).sum(1)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    r"""Difference of logits ratio (arXiv:2003.01690): :math:`-(z_y - c) / (z_{(1)} - z_{(3)})`.

    c is the largest other logit. With two classes there is no third logit and the plain margin is
    taken.
    """
    if logits.shape[1] < 3:
        return margin(logits, y)
    top = logits.topk(3, dim=1).values
    return margin(logits, y) / (top[:, 0] - top[:, 2] + TINY)


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    r"""Targeted form: :math:`-(z_y - z_t) / (z_{(1)} - (z_{(3)} + z_{(4)})/2)`.

    With fewer than four classes the denominator does not exist and z_t - z_y is taken.
    """
    target_margin = targeted_margin(logits, y, target)
    if logits.shape[1] < 4:
        return target_margin
    top = logits.topk(4, dim=1).values
    return target_margin / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + TINY)


def targeted_margin(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """z_t - z_y."""
    return label_logit(logits, target) - label_logit(logits, y)


def label_logit(logits: Tensor, y: Tensor) -> Tensor:
    """(N,) the logit of the label."""
    return logits.gather(1, y[:, None])[:, 0]


def max_other_logit(logits: Tensor, y: Tensor) -> Tensor:
    """(N,) the largest logit of another class."""
    return logits.scatter(1, y[:, None], -torch.inf).amax(1)
