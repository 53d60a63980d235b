"""A training loss. The loop knows none of them; an objective knows nothing of the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from buttress.registry import Registry
from buttress.streams import Streams
from buttress.threat import Threat


class Step(NamedTuple):
    """What an objective is given: a batch, and the adversary to train against."""

    x: Tensor  # (N, C, H, W) in [0, 1]
    y: Tensor  # (N,)
    threat: Threat | None
    streams: Streams  # of these samples in this epoch
    epoch: float = 0.0  # that are done, with the share of the current one
    strength: float = 1.0  # of the adversary while eps warms up, as a share of its eps
    smoothing: float = 0.0  # share of a label that is spread evenly over all classes


class Loss(NamedTuple):
    """What an objective returns: what to minimise, and the logits whose accuracy is logged."""

    total: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Objective(ABC):
    """The arguments of a training loss, and its formula."""

    needs_threat = False

    @abstractmethod
    def loss(self, model: nn.Module, step: Step) -> Loss:
        """The loss of a batch, with the model in training mode."""


def cross_entropy(logits: Tensor, step: Step, reduction: str = "mean") -> Tensor:
    """The cross-entropy that is trained on; attacks use the plain one.

    Logits of several forms of the batch, one after the other, are all held against its labels.
    """
    y = step.y.repeat(len(logits) // len(step.y))
    return F.cross_entropy(logits, y, reduction=reduction, label_smoothing=step.smoothing)


OBJECTIVES: Registry[type[Objective]] = Registry("objective")
