"""What an attack is asked to solve: raise a loss of a model inside a ball around each image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from buttress.streams import Streams
from buttress.threat import TINY, Threat


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
    parts: Tensor  # (N,) int64: bit k is set if part k of an ensemble attacked the sample
    spared: Tensor  # (N,) int64: bit k is set if it was left, but not worth part k

    @classmethod
    def of(cls, n: int, device: torch.device) -> Meter:
        zero = torch.zeros(n, dtype=torch.int64, device=device)
        no = torch.zeros(n, dtype=torch.bool, device=device)
        return cls(zero, zero.clone(), no, ~no, zero.clone(), zero.clone())

    def merge(self, rows: Tensor, other: Meter) -> None:
        """Adds what a second search on some rows cost and saw."""
        self.forward[rows] += other.forward
        self.backward[rows] += other.backward
        self.parts[rows] |= other.parts
        self.spared[rows] |= other.spared
        self.broken_numerics[rows] |= other.broken_numerics
        self.flat[rows] &= other.flat

    def add(self, place: Place, is_wrong: Tensor, passes: Tensor | int = 1) -> None:
        """Forward passes; a sample may be in several rows."""
        _count(self.forward, place, passes)
        self._note_wrong(place, is_wrong)

    def add_backward(self, place: Place, size: Tensor, passes: int = 1) -> None:
        """Backward passes whose gradients have these L1 norms."""
        _count(self.backward, place, passes)
        self._note_wrong(place, ~size.isfinite())
        if isinstance(place, slice):
            self.flat[place] &= size == 0
        else:
            self.flat[place[size != 0]] = False

    def _note_wrong(self, place: Place, is_wrong: Tensor) -> None:
        if is_wrong.device.type == "cpu" and not is_wrong.any():
            return
        if isinstance(place, slice):
            self.broken_numerics[place] |= is_wrong
        else:
            self.broken_numerics[place[is_wrong]] = True


def _count(total: Tensor, place: Place, passes: Tensor | int) -> None:
    if isinstance(place, slice):
        total[place] += passes
    else:
        many = passes if isinstance(passes, Tensor) else torch.full_like(place, passes)
        total.index_add_(0, place, many)


Score = Callable[[Tensor], Tensor]  # logits (N, K) -> loss (N,)
Place = Tensor | slice  # rows of a whole, as a slice where they are neighbours: many times faster


@dataclass(frozen=True)
class Problem:
    """A batch of images, the model they are to fool, and the ball they may move in."""

    model: nn.Module
    x: Tensor  # (N, C, H, W) in [0, 1]
    y: Tensor  # (N,)
    threat: Threat
    streams: Streams
    clean: Tensor | None = None  # (N, K) logits of x, once they are known
    order: Tensor | None = None  # (N, K - 1) other classes, the nearest first, if that is known
    asked: Tensor | None = None  # (N, runs) bool: which runs are asked for, if not all
    meter: Meter | None = None
    rows: Tensor | None = field(default=None, repr=False)
    full: int = 128  # rows with which a processor is busy: more of them go no faster

    def select(self, keep: Tensor) -> Problem:
        """The same problem for some of its samples."""
        return replace(
            self,
            x=self.x[keep],
            y=self.y[keep],
            streams=self.streams.select(keep),
            clean=None if self.clean is None else self.clean[keep],
            order=None if self.order is None else self.order[keep],
            asked=None if self.asked is None else self.asked[keep],
            rows=self.meter_rows[keep],
        )

    @property
    def num_classes(self) -> int:
        assert self.clean is not None
        return self.clean.shape[1]

    @property
    def meter_rows(self) -> Tensor:
        """Where these samples are in the meter."""
        return self.rows_of() if self.rows is None else self.rows

    @cached_property
    def place(self) -> Place:
        """The same, as a slice if possible; an accelerator is not waited for to see that."""
        rows = self.meter_rows
        if rows.device.type != "cpu" or not len(rows) or not bool((rows.diff() == 1).all()):
            return rows
        return slice(int(rows[0]), int(rows[-1]) + 1)

    def rows_of(self, n: int | None = None) -> Tensor:
        """The positions of the first ``n`` samples, of all if not given."""
        return torch.arange(len(self.x) if n is None else n, device=self.x.device)

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor] | None:
        return self.threat.bounds(self.x)

    def project(self, x_t: Tensor, scale: Tensor | None = None) -> Tensor:
        """The nearest points of ball ∩ box; ``scale`` (N,) enlarges each sample's ball."""
        if scale is None and self.bounds is not None:
            return x_t.clamp(*self.bounds)
        return self.threat.project(self.x, x_t, scale)

    def project_(self, x_t: Tensor) -> Tensor:
        """The same for points that are needed no more: they may be overwritten."""
        return self.project(x_t) if self.bounds is None else x_t.clamp_(*self.bounds)

    def rescale_(self, x_t: Tensor) -> Tensor:
        """Points drawn straight towards the image into the ball, then clipped to the box.

        What was given may be overwritten.
        """
        return self.project_(x_t) if self.bounds else self.threat.rescale(self.x, x_t)

    def random_start(self, restart: int | Tensor = 0) -> Tensor:
        return self.threat.random_start(self.x, self.streams, restart)

    def border_start(self, run: Tensor, scale: float = 1.0) -> Tensor:
        """Noise stretched until its norm is ``scale * eps``, cut by the box."""
        x, threat = self.x, self.threat
        is_box = threat.norm == "Linf"
        noise = 2 * self.streams.uniform(x, run) - 1 if is_box else self.streams.normal(x, run)
        size = threat.distance(torch.zeros_like(x), noise).to(x.dtype) + TINY
        return (x + noise * (scale * threat.eps / size).view(-1, 1, 1, 1)).clamp_(0, 1)

    def look(
        self, x_t: Tensor, score: Score, *, grad: bool | Tensor = True, passes: int = 1
    ) -> Seen:
        """One forward pass at ``x_t``, and one backward pass to it where the gradient is wanted.

        ``grad`` may be a mask of rows; the gradient of the others is zero. For randomised models
        logits, loss and gradient are averaged over several ``passes``.
        """
        if isinstance(grad, Tensor) and grad.all() == grad.any():
            grad = bool(grad.all())
        once = self._some if isinstance(grad, Tensor) else self._all
        seen = once(x_t, score, grad)  # type: ignore[arg-type]
        if passes == 1:
            return seen
        every = [seen] + [once(x_t, score, grad) for _ in range(passes - 1)]  # type: ignore[arg-type]
        slopes = [s.grad for s in every if s.grad is not None]
        return Seen(
            torch.stack([s.logits for s in every]).mean(0),
            torch.stack([s.loss for s in every]).mean(0),
            sum(slopes[1:], slopes[0]) / passes if slopes else None,
        )

    def _all(self, x_t: Tensor, score: Score, grad: bool) -> Seen:
        with torch.set_grad_enabled(grad):
            point = x_t.detach().requires_grad_(grad)
            logits = self.model(point)
            loss = score(logits)
            slope = gradient(loss.sum(), point) if grad else None
        return self.counted(Seen(logits.detach(), loss.detach(), slope))

    def _some(self, x_t: Tensor, score: Score, wanted: Tensor) -> Seen:
        """Gradients for some rows only: two forward passes, each over its part of the batch."""
        with torch.no_grad():
            others = self.model(x_t[~wanted])
        with torch.enable_grad():
            point = x_t[wanted].detach().requires_grad_(True)
            here = self.model(point)
            logits = here.new_empty(len(x_t), here.shape[1])
            logits = logits.index_put((wanted,), here).index_put((~wanted,), others)
            loss = score(logits)
            part = gradient(loss.sum(), point)
        slope = torch.zeros_like(x_t)
        slope[wanted] = part
        return self.counted(Seen(logits.detach(), loss.detach(), slope), wanted)

    def counted(self, seen: Seen, wanted: Tensor | None = None, backward: int = 1) -> Seen:
        """The same with a finite gradient; what was done and seen is in the meter."""
        size = None
        if seen.grad is not None:
            size = seen.grad.flatten(1).abs().sum(1)
            if size.device.type != "cpu" or not size.isfinite().all():
                slope = torch.nan_to_num(seen.grad, nan=0.0, posinf=0.0, neginf=0.0)
                seen = seen._replace(grad=slope)
        if self.meter is None:
            return seen
        self.meter.add(self.place, ~seen.loss.isfinite())
        if size is not None and wanted is None:
            self.meter.add_backward(self.place, size, backward)
        elif size is not None:
            self.meter.add_backward(self.meter_rows[wanted], size[wanted], backward)
        return seen


def gradient(total: Tensor, point: Tensor, *, retain: bool = False) -> Tensor:
    """The gradient of ``total``; zero where the model cut the graph."""
    if not total.requires_grad:
        return torch.zeros_like(point)
    (slope,) = torch.autograd.grad(total, point, retain_graph=retain, allow_unused=True)
    return torch.zeros_like(point) if slope is None else slope.detach()
