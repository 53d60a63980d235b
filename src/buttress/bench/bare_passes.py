"""Seconds of bare passes: of the original model, and of the inference-optimized one (the floor)."""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch
from torch import Tensor, nn

from buttress.engine.fast_model import BATCH_SIZES, FastModel
from buttress.engine.processes import default_num_workers, run_in_processes
from buttress.system.progress import OnProgress

BARE_BATCH = 256  # images of a bare pass
BARE_REPEATS = 5  # times that a bare pass is measured, at least
FLOOR_SECONDS = 0.3  # for which a pass of the floor is repeated


def time_bare_passes(model: nn.Module, x: Tensor, forward: float, backward: float) -> float:
    """Seconds of so many passes per image with nothing around them, in batches of 256."""
    times = _time_both_passes(model, x[:BARE_BATCH])
    return len(x) * _total_seconds(times, forward, backward)


def time_floor(
    model: nn.Module, x: Tensor, forward: float, backward: float, workers: int | None = None
) -> float:
    """Seconds of so many passes per image of the inference-optimized model, and nothing else.

    They are made by ``workers`` processes of one thread at the same time, as many as an attack uses
    by default, in batches that saturate a core. Building the model is not counted.
    """
    fast_model = FastModel.select(model, x[:BARE_BATCH])
    fast_model.optimize_forward()
    size = fast_model.saturating_batch or BATCH_SIZES[-1]
    batch = x[torch.arange(size) % len(x)]
    workers = workers or default_num_workers(BARE_BATCH, x.device)
    task = partial(_time_in_process, fast_model.module, batch)
    times = run_in_processes([task] * workers)
    mean_times = [statistics.mean(t[k] for t in times) / workers for k in range(2)]
    return len(x) * _total_seconds((mean_times[0], mean_times[1]), forward, backward)


def _time_in_process(
    model: nn.Module, batch: Tensor, on_progress: OnProgress
) -> tuple[float, float]:
    return _time_both_passes(model, batch, FLOOR_SECONDS)


def _time_both_passes(
    model: nn.Module, batch: Tensor, min_seconds: float = 0.0
) -> tuple[float, float]:
    """Median seconds per image of a forward pass, and of one with a backward pass."""
    return (
        _time_pass(model, batch, min_seconds, grad=False),
        _time_pass(model, batch, min_seconds, grad=True),
    )


def _time_pass(model: nn.Module, batch: Tensor, min_seconds: float, *, grad: bool) -> float:
    seconds: list[float] = []
    while len(seconds) < BARE_REPEATS or sum(seconds) < min_seconds:
        started = time.perf_counter()
        with torch.set_grad_enabled(grad):
            point = batch.detach().requires_grad_(grad)
            logits = model(point)
            if grad:
                torch.autograd.grad(logits.sum(), point)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) / len(batch)


def _total_seconds(times: tuple[float, float], forward: float, backward: float) -> float:
    """Seconds of these passes of an image, with the seconds of a forward and of a full pass."""
    return (forward - backward) * times[0] + backward * times[1]
