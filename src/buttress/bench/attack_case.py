"""One tool on one model in a separate process, so that memory and time are its own.

    python -m buttress.bench.attack_case '{"racer": "buttress fast", "network": "vit", ...}'

The result is printed as one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import sys
import threading
import time
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from buttress.bench import models as networks
from buttress.bench.attack_tools import BATCH, TOOLS, Tool, ToolOutput
from buttress.threats.norm_ball import Threat

BARE_REPEATS = 5  # times that a bare pass is measured


@dataclass(frozen=True)
class ToolRun:
    """Settings of one process."""

    racer: str
    network: str
    images: int
    threat: str
    data: str = "cifar10"
    checkpoint: str | None = None
    warm: bool = False  # run once on a batch before it counts


@dataclass(frozen=True)
class ToolResult:
    seconds: float
    robust: int  # robust images
    forward: float  # passes per image
    backward: float
    memory: float  # MB by which memory grew at its peak
    floor: float  # seconds of the same forward and backward passes alone
    preparing: float = (
        0.0  # seconds of building the inference-optimized model, included in the seconds
    )
    left: tuple[int, ...] = ()  # positions of the robust images


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
    model = networks.load_benchmark_model(tool_run.network, tool_run.data, tool_run.checkpoint)
    x, y = networks.first_test_images(tool_run.data, tool_run.images)
    threat, tool = Threat.parse(tool_run.threat), TOOLS.get(tool_run.racer)
    counting = PassCountingModel(model).eval()
    with PeakMemory() as watch:
        if tool_run.warm:
            tool(model, x[:BATCH], y[:BATCH], threat)
        attacked_model = model if "buttress" in tool_run.racer else counting
        output, seconds = _time_tool(tool, attacked_model, x, y, threat)
    passes = output.passes or (
        counting.forward_count / len(x),
        counting.backward_count / len(x),
    )
    with torch.no_grad():
        robust_images = (model(output.x_adv).argmax(1) == y).nonzero()[:, 0].tolist()
    bare_seconds = time_bare_passes(model, x, *passes)
    return ToolResult(
        seconds,
        len(robust_images),
        *passes,
        watch.growth_mb,
        bare_seconds,
        output.preparing,
        tuple(robust_images),
    )


def _time_tool(
    tool: Tool, model: nn.Module, x: Tensor, y: Tensor, threat: Threat
) -> tuple[ToolOutput, float]:
    started = time.perf_counter()
    output = tool(model, x, y, threat)
    return output, time.perf_counter() - started


def time_bare_passes(model: nn.Module, x: Tensor, forward: float, backward: float) -> float:
    """Seconds of so many bare passes per image, in batches of 256."""
    batch, times = x[:256], {True: 0.0, False: 0.0}
    for grad in times:
        seconds = []
        for _ in range(BARE_REPEATS):
            started = time.perf_counter()
            with torch.set_grad_enabled(grad):
                point = batch.detach().requires_grad_(grad)
                logits = model(point)
                if grad:
                    torch.autograd.grad(logits.sum(), point)
            seconds.append(time.perf_counter() - started)
        times[grad] = sorted(seconds)[BARE_REPEATS // 2] / len(batch)
    return len(x) * ((forward - backward) * times[False] + backward * times[True])


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


def main(arguments: str) -> None:
    warnings.simplefilter("ignore")
    fields: dict[str, Any] = json.loads(arguments)
    print(json.dumps(asdict(run_tool(replace(ToolRun("", "", 0, ""), **fields)))))


if __name__ == "__main__":
    main(sys.argv[1])
