"""One tool on one model, in a process of its own, so that memory and time are its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from buttress.bench.attack_tools import TOOLS
from buttress.bench.bare_passes import time_bare_passes, time_floor
from buttress.bench.models import first_test_images, load_benchmark_model
from buttress.threats.norm_ball import NormBall

WARM_UP_IMAGES = 32


@dataclass(frozen=True)
class ToolRun:
    """Settings of one process."""

    tool: str = ""
    model: str = ""
    images: int = 0
    threat: str = ""
    data: str = "cifar10"
    checkpoint: str | None = None
    warm_up: bool = False  # run once on a few images before it counts


@dataclass(frozen=True)
class ToolResult:
    seconds: float
    num_robust: int
    forward: float  # passes per image
    backward: float
    peak_memory_mb: float  # by which memory grew
    bare_seconds: float  # of the same forward and backward passes alone
    floor_seconds: float  # of those of the inference-optimized model; 0 for tools of others
    setup_seconds: float  # of building the inference-optimized model, included in the seconds
    robust_images: tuple[int, ...]  # their positions


class PassCountingModel(nn.Module):
    """The same model; counts images in forward and backward passes."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.forward_count, self.backward_count = net, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.forward_count += len(x)
        logits: Tensor = self.net(x)
        if logits.requires_grad:
            logits.register_hook(self._count)
        return logits

    def _count(self, grad: Tensor) -> None:
        self.backward_count += len(grad)


def run_tool(tool_run: ToolRun) -> ToolResult:
    """Run one benchmark case in this process."""
    model = load_benchmark_model(tool_run.model, tool_run.data, tool_run.checkpoint)
    x, y = first_test_images(tool_run.data, tool_run.images)
    threat, tool = NormBall.parse(tool_run.threat), TOOLS.get(tool_run.tool)
    metadata = TOOLS.entry(tool_run.tool).metadata
    is_ours = metadata["package"] == "buttress"
    counting = PassCountingModel(model).eval()
    with PeakMemory() as memory:
        if tool_run.warm_up:
            tool(model, x[:WARM_UP_IMAGES], y[:WARM_UP_IMAGES], threat)
        started = time.perf_counter()
        output = tool(model if is_ours else counting, x, y, threat)
        seconds = time.perf_counter() - started
    counts = (counting.forward_count / len(x), counting.backward_count / len(x))
    forward, backward = output.passes or counts
    with torch.no_grad():
        robust_images = (model(output.x_adv).argmax(1) == y).nonzero()[:, 0].tolist()
    return ToolResult(
        seconds=seconds,
        num_robust=len(robust_images),
        forward=forward,
        backward=backward,
        peak_memory_mb=memory.growth_mb,
        bare_seconds=time_bare_passes(model, x, forward, backward),
        floor_seconds=(
            time_floor(model, x, forward, backward, metadata["workers"]) if is_ours else 0.0
        ),
        setup_seconds=output.setup_seconds,
        robust_images=tuple(robust_images),
    )


class PeakMemory:
    """Sample the memory of this process and its children; Linux only.

    A sample walks all pages of all processes. Sampling takes a small, fixed fraction of the time of
    one core, so that tools with more processes are not slowed down more.
    """

    EVERY, SHARE = 0.25, 0.01  # minimum seconds between two samples, and their fraction of the time

    def __enter__(self) -> PeakMemory:
        self.first = self.peak = resident_memory_mb()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._poll, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._update_peak()
        self.stop.set()
        self.thread.join()

    def _poll(self) -> None:
        pause = self.EVERY
        while not self.stop.wait(pause):
            started = time.perf_counter()
            self._update_peak()
            pause = max(self.EVERY, (time.perf_counter() - started) / self.SHARE)

    def _update_peak(self) -> None:
        self.peak = max(self.peak, resident_memory_mb())

    @property
    def growth_mb(self) -> float:
        """MB by which memory grew at its peak."""
        return self.peak - self.first


def resident_memory_mb() -> float:
    """MB that this process and its children hold, shared pages counted once."""
    total = 0.0
    for pid in (os.getpid(), *(p.pid for p in multiprocessing.active_children())):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += sum(int(kb) for kb in re.findall(r"^Pss:\s+(\d+) kB", text, flags=re.M)) / 1024
    return total
