"""What an attack is asked to solve: raise a loss of a model inside a ball around each image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

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


Score = Callable[[Tensor], Tensor]  # logits (N, K) -> loss (N,)


@dataclass(frozen=True)
class Problem:
    """A batch of images, the model they are to fool, and the ball they may move in."""

    model: nn.Module
    x: Tensor  # (N, C, H, W) in [0, 1]
    y: Tensor  # (N,)
    threat: Threat
    streams: Streams
    clean: Tensor | None = None  # (N, K) logits of x, once they are known
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
            clean=None if self.clean is None else self.clean[keep],
            rows=rows[keep],
        )

    @property
    def num_classes(self) -> int:
        assert self.clean is not None
        return self.clean.shape[1]

    def project(self, x_t: Tensor) -> Tensor:
        return self.threat.project(self.x, x_t)

    def random_start(self, restart: int = 0) -> Tensor:
        return self.threat.random_start(self.x, self.streams, restart)

    def look(self, x_t: Tensor, score: Score, *, grad: bool = True, passes: int = 1) -> Seen:
        """One forward pass at ``x_t``, and one backward pass to it if the gradient is wanted.

        For randomised models the gradient is averaged over several ``passes``; logits and loss are
        those of the last one.
        """
        if not grad:
            with torch.no_grad():
                logits = self.model(x_t)
                seen = Seen(logits, score(logits), None)
            self._count(seen)
            return seen
        total = torch.zeros_like(x_t) if passes > 1 else None
        for _ in range(passes):
            with torch.enable_grad():
                point = x_t.detach().requires_grad_(True)
                logits = self.model(point)
                loss = score(logits)
                slope = gradient(loss.sum(), point)
            seen = Seen(logits.detach(), loss.detach(), slope)
            self._count(seen)
            slope = torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0)
            total = slope if total is None else total + slope
        return seen._replace(grad=total if total is None or passes == 1 else total / passes)

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
