"""What an attack maximises: functions of logits, one value per sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

# (logits (N, K), labels (N,), reference (N, K) or None) -> (N,)
Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]
LossName = Literal["ce", "margin", "kl"]


def cross_entropy(logits: Tensor, y: Tensor, reference: Tensor | None = None) -> Tensor:
    """-log softmax(z)_y."""
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor, reference: Tensor | None = None) -> Tensor:
    """max_{k != y} z_k - z_y: positive exactly where the prediction is wrong."""
    true = logits.gather(1, y[:, None])[:, 0]
    others = logits.scatter(1, y[:, None], -torch.inf)
    return others.amax(1) - true


def kl(logits: Tensor, y: Tensor, reference: Tensor | None = None) -> Tensor:
    """KL(p(reference) || p): how far the prediction moved from that of the reference logits."""
    if reference is None:
        raise ValueError("the kl loss needs reference logits")
    log_p = F.log_softmax(reference, 1)
    return (log_p.exp() * (log_p - F.log_softmax(logits, 1))).sum(1)


LOSSES: dict[str, Loss] = {"ce": cross_entropy, "margin": margin, "kl": kl}
