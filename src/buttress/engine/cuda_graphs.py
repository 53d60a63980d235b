"""Short passes on a CUDA device, replayed as CUDA graphs.

A pass of a small model spends its time on the launches of its kernels; a graph launches all of them
at once. Graphs have a fixed number of rows, so a batch is padded to the next power of two.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.engine.rewrites import NotApplicable
from buttress.models.cost import MacCounter

# Multiply-accumulates of a pass next to which the launches of its kernels count: some milliseconds
# of a large GPU. Chosen on paper: no GPU was at hand to measure it.
LAUNCH_BOUND_MACS = 2e10
MAX_ROWS = 256  # of a graph

Pass = Callable[[Tensor], Tensor]
Capture = Callable[[Pass, Tensor], Pass]  # a pass, and points of the shape that it will get


def replay_as_cuda_graphs(model: nn.Module, x: Tensor) -> nn.Module:
    """The same model, whose short passes are captured once for each number of rows."""
    if x.device.type != "cuda":
        raise NotApplicable("the model is not on a CUDA device")
    return GraphedModel(model, launch_bound_rows(model, x), _capture_on_cuda)


def launch_bound_rows(model: nn.Module, x: Tensor) -> int:
    """Rows of the largest pass, a power of two, that is short enough for a graph."""
    with torch.no_grad(), MacCounter() as counter:
        model(x[:1])
    rows = min(MAX_ROWS, int(LAUNCH_BOUND_MACS / max(1, counter.macs)))
    if rows < 1:
        raise NotApplicable("a pass of one image takes longer than the launches of its kernels")
    return int(1 << (rows.bit_length() - 1))


def _capture_on_cuda(function: Pass, points: Tensor) -> Pass:
    captured: Pass = torch.cuda.make_graphed_callables(function, (points,))  # type: ignore[assignment]
    return captured


class GraphedModel(nn.Module):
    """A model that replays the graphs of its passes; long or unusual passes are made as before."""

    def __init__(self, model: nn.Module, max_rows: int, capture: Capture) -> None:
        super().__init__()
        self.model, self.max_rows, self._capture = model, max_rows, capture
        self._graphs: dict[tuple[Any, ...], _Graph | None] = {}

    def forward(self, x: Tensor) -> Tensor:
        graph = self._graph_for(x) if 1 <= len(x) <= self.max_rows else None
        logits: Tensor = self.model(x) if graph is None or graph.is_busy else graph.replay(x)
        return logits

    def _graph_for(self, x: Tensor) -> _Graph | None:
        """The graph for such points, captured the first time; None where that fails."""
        rows = 1 << (len(x) - 1).bit_length()
        needs_grad = x.requires_grad and torch.is_grad_enabled()
        key = (rows, *x.shape[1:], x.dtype, x.device, needs_grad)
        if key not in self._graphs:
            points = x.new_zeros(rows, *x.shape[1:]).requires_grad_(needs_grad)
            try:
                self._graphs[key] = _Graph(rows, self._capture(lambda p: self.model(p), points))
            except RuntimeError:  # no memory for one more graph, or a pass that cannot be captured
                if not self._graphs:
                    raise  # then none can: `FastModel` reports the reason
                self._graphs[key] = None
        return self._graphs[key]


class _Replay:
    """One replay of a graph, whose activations stay until the next one."""

    is_finished = False  # its gradient was computed


@dataclass
class _Graph:
    rows: int
    function: Pass
    last: weakref.ReferenceType[_Replay] | None = None  # replay with a gradient

    @property
    def is_busy(self) -> bool:
        """Whether a gradient of the last replay may still be asked for."""
        replay = None if self.last is None else self.last()
        return replay is not None and not replay.is_finished

    def replay(self, x: Tensor) -> Tensor:
        logits = self.function(F.pad(x, [0, 0] * (x.ndim - 1) + [0, self.rows - len(x)]))[: len(x)]
        if not logits.requires_grad:
            return logits.clone()  # the next replay writes to the same memory
        replay = _Replay()
        self.last = weakref.ref(replay)
        guarded: Tensor = _GuardedCopy.apply(logits, self, replay)
        return guarded


class _GuardedCopy(torch.autograd.Function):
    """A copy of logits that refuses a gradient if their activations are gone."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, graph: _Graph, replay: _Replay) -> Tensor:
        ctx.graph, ctx.replay = graph, replay
        return logits.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        if ctx.graph.last is None or ctx.graph.last() is not ctx.replay:
            raise RuntimeError("a CUDA graph was replayed before the gradient of its last pass")
        ctx.replay.is_finished = True
        return grads[0], None, None
