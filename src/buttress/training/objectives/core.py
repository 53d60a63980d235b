"""A training loss. The loop knows none of them; an objective knows nothing of the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.data import Mixing
from buttress.registry import Registry
from buttress.streams import Streams
from buttress.threat import Threat


@dataclass(frozen=True)
class Step:
    """What an objective is given: a batch, and the adversary to train against."""

    x: Tensor  # (N, C, H, W) in [0, 1]
    y: Tensor  # (N,)
    threat: Threat | None
    streams: Streams  # of these samples in this epoch
    epoch: float = 0.0  # that are done, with the share of the current one
    strength: float = 1.0  # of the adversary while eps warms up, as a share of its eps
    stretch: float = 1.0  # of the attack's steps, where they do not shrink with eps
    smoothing: float = 0.0  # share of a label that is spread evenly over all classes
    mixed: Mixing | None = None  # with whom each image was mixed
    places: Tensor | None = None  # (N,) where the images stand in the whole batch
    memory: dict[str, Tensor] = field(default_factory=dict)  # what an objective keeps: by place
    searched: nn.Module | None = None  # the network that attacks see, if it is another form

    def attacked(self) -> Step:
        """The same for an attack, which aims away from the label with the larger share."""
        if self.mixed is None:
            return self
        own = self.mixed.weight >= 0.5
        return replace(self, y=torch.where(own, self.y, self.y[self.mixed.partner]), mixed=None)


class Found(NamedTuple):
    """What the attack of an objective found: images, and in what they weigh."""

    x: Tensor
    weight: Tensor | None = None  # (N,)


class Loss(NamedTuple):
    """What an objective returns: what to minimise, and the logits whose accuracy is logged."""

    total: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Objective(ABC):
    """The arguments of a training loss, and its formula: an attack, then a loss on what it found.

    The two are apart so that several losses can be taken of one attack, at other weights.
    """

    needs_threat = False
    needs_extra = False  # more images than the data set has
    repeats = 1  # steps of the optimiser on each batch

    def search(self, model: nn.Module, step: Step) -> Found | None:
        """The images to train on, with the model as it is; None if these are the given ones."""
        return None

    @abstractmethod
    def loss(self, model: nn.Module, step: Step, found: Found | None) -> Loss:
        """The loss of a batch, with the model in training mode."""

    def learn(self, step: Step, found: Found | None) -> None:  # noqa: B027 - most learn nothing
        """Is called after the backward pass, for objectives that use its gradients."""

    def stronger(self) -> Objective:
        """The same with a longer attack, for when training has learnt to deceive this one."""
        return self


def images_of(found: Found | None) -> Tensor:
    """The images that an attack found, where there must have been one."""
    assert found is not None
    return found.x


def cross_entropy(logits: Tensor, step: Step, reduction: str = "mean") -> Tensor:
    """The cross-entropy that is trained on; attacks use the plain one.

    Logits of several forms of the batch, one after the other, are all held against its labels.
    """
    times = len(logits) // len(step.y)
    own = _against(logits, step.y.repeat(times), step.smoothing)
    if step.mixed is not None:
        share = step.mixed.weight.to(own.dtype).repeat(times)
        other = _against(logits, step.y[step.mixed.partner].repeat(times), step.smoothing)
        own = share * own + (1 - share) * other
    return own.mean() if reduction == "mean" else own


def _against(logits: Tensor, y: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)


OBJECTIVES: Registry[type[Objective]] = Registry("objective")
