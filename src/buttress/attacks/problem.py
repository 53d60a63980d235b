"""What an attack is asked to solve: raise a loss of a model inside a ball around each image."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from buttress.attacks.losses import Loss, cross_entropy
from buttress.streams import Streams
from buttress.threat import Threat


class Seen(NamedTuple):
    """What one look at a point showed."""

    logits: Tensor  # (N, K)
    loss: Tensor  # (N,)
    grad: Tensor | None  # (N, C, H, W), of the summed loss


@dataclass
class Meter:
    """Counts what an attack costs and what went wrong, per sample of the whole problem."""

    forward: Tensor  # (N,) int64
    backward: Tensor
    broken_numerics: Tensor  # (N,) bool: a loss or gradient was not finite
    flat: Tensor  # (N,) bool: every gradient so far was zero

    @classmethod
    def of(cls, n: int, device: torch.device) -> Meter:
        zero = torch.zeros(n, dtype=torch.int64, device=device)
        no = torch.zeros(n, dtype=torch.bool, device=device)
        return cls(zero, zero.clone(), no, ~no)


@dataclass(frozen=True)
class Problem:
    """A batch of images, the model they are to fool, and the ball they may move in."""

    model: nn.Module
    x: Tensor  # (N, C, H, W) in [0, 1]
    y: Tensor  # (N,)
    threat: Threat
    streams: Streams
    loss: Loss = cross_entropy
    reference: Tensor | None = None  # (N, K) logits, for losses that compare with them
    meter: Meter | None = None
    rows: Tensor | None = field(default=None, repr=False)  # where these samples are in the meter

    def select(self, keep: Tensor) -> Problem:
        """The same problem for some of its samples."""
        rows = torch.arange(len(self.x), device=self.x.device) if self.rows is None else self.rows
        return replace(
            self,
            x=self.x[keep],
            y=self.y[keep],
            streams=self.streams.select(keep),
            reference=None if self.reference is None else self.reference[keep],
            rows=rows[keep],
        )

    def project(self, x_t: Tensor) -> Tensor:
        return self.threat.project(self.x, x_t)

    def random_start(self, restart: int = 0) -> Tensor:
        return self.threat.random_start(self.x, self.streams, restart)

    def look(self, x_t: Tensor, *, grad: bool = True) -> Seen:
        """One forward pass at ``x_t``, and one backward pass to it if the gradient is wanted."""
        if not grad:
            with torch.no_grad():
                logits = self.model(x_t)
                seen = Seen(logits, self.loss(logits, self.y, self.reference), None)
            self._count(seen)
            return seen
        with torch.enable_grad():
            point = x_t.detach().requires_grad_(True)
            logits = self.model(point)
            loss = self.loss(logits, self.y, self.reference)
            slope = gradient(loss.sum(), point)
        seen = Seen(logits.detach(), loss.detach(), slope)
        self._count(seen)
        return seen._replace(grad=torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0))

    def _count(self, seen: Seen) -> None:
        meter = self.meter
        if meter is None:
            return
        rows = slice(None) if self.rows is None else self.rows
        meter.forward[rows] += 1
        wrong = ~seen.loss.isfinite()
        if seen.grad is not None:
            meter.backward[rows] += 1
            size = seen.grad.flatten(1).abs().sum(1)
            wrong |= ~size.isfinite()
            meter.flat[rows] &= size == 0
        meter.broken_numerics[rows] |= wrong


def gradient(total: Tensor, point: Tensor) -> Tensor:
    """The gradient of ``total``; zero where the model cut the graph."""
    if not total.requires_grad:
        return torch.zeros_like(point)
    (slope,) = torch.autograd.grad(total, point, allow_unused=True)
    return torch.zeros_like(point) if slope is None else slope.detach()
