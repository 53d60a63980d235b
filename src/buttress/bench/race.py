"""One racer on one network, in a process of its own, so that memory and time are its own.

    python -m buttress.bench.race '{"racer": "buttress fast", "network": "vit", ...}'

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

from buttress.bench import networks
from buttress.bench.racers import BATCH, RACERS, Found, Racer
from buttress.threat import Threat

PROBES = 5  # times that a bare pass is measured


@dataclass(frozen=True)
class Race:
    """What one process does."""

    racer: str
    network: str
    images: int
    threat: str
    data: str = "cifar10"
    checkpoint: str | None = None
    warm: bool = False  # run once on a batch before it counts


@dataclass(frozen=True)
class Result:
    seconds: float
    robust: int  # images that are still right
    forward: float  # passes per image
    backward: float
    memory: float  # MB by which memory grew at its peak
    floor: float  # seconds of the same passes and nothing else
    preparing: float = 0.0  # seconds of preparing, which are in the seconds
    left: tuple[int, ...] = ()  # which images are still right


class Counting(nn.Module):
    """The same network; counts the images that pass, forward and backward."""

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


def run(race: Race) -> Result:
    """Runs a race in this process."""
    model = networks.load(race.network, race.data, race.checkpoint)
    x, y = networks.images(race.data, race.images)
    threat, racer = Threat.parse(race.threat), RACERS.get(race.racer)
    counting = Counting(model).eval()
    with Watch() as watch:
        if race.warm:
            racer(model, x[:BATCH], y[:BATCH], threat)
        seen = model if "buttress" in race.racer else counting
        found, seconds = _timed(racer, seen, x, y, threat)
    passes = found.passes or (
        counting.forward_count / len(x),
        counting.backward_count / len(x),
    )
    with torch.no_grad():
        left = (model(found.x_adv).argmax(1) == y).nonzero()[:, 0].tolist()
    least = floor(model, x, *passes)
    return Result(seconds, len(left), *passes, watch.grown, least, found.preparing, tuple(left))


def _timed(
    racer: Racer, model: nn.Module, x: Tensor, y: Tensor, threat: Threat
) -> tuple[Found, float]:
    started = time.perf_counter()
    found = racer(model, x, y, threat)
    return found, time.perf_counter() - started


def floor(model: nn.Module, x: Tensor, forward: float, backward: float) -> float:
    """Seconds that so many passes per image take if nothing else is done, in batches of 256."""
    batch, times = x[:256], {True: 0.0, False: 0.0}
    for grad in times:
        seconds = []
        for _ in range(PROBES):
            started = time.perf_counter()
            with torch.set_grad_enabled(grad):
                point = batch.detach().requires_grad_(grad)
                logits = model(point)
                if grad:
                    torch.autograd.grad(logits.sum(), point)
            seconds.append(time.perf_counter() - started)
        times[grad] = sorted(seconds)[PROBES // 2] / len(batch)
    return len(x) * ((forward - backward) * times[False] + backward * times[True])


class Watch:
    """Looks at the memory of this process and its children from time to time; Linux only.

    A look walks all pages of all processes. It must not slow down those who have more of them, so
    that looks take a small share of the time of one core, whatever one costs.
    """

    EVERY, SHARE = 0.25, 0.01  # seconds between two looks at least, and their share of the time

    def __enter__(self) -> Watch:
        self.first = self.most = held()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._see()
        self.stop.set()
        self.thread.join()

    def _look(self) -> None:
        pause = self.EVERY
        while not self.stop.wait(pause):
            started = time.perf_counter()
            self._see()
            pause = max(self.EVERY, (time.perf_counter() - started) / self.SHARE)

    def _see(self) -> None:
        self.most = max(self.most, held())

    @property
    def grown(self) -> float:
        """MB by which memory grew at its peak."""
        return self.most - self.first


def held() -> float:
    """MB that this process and its children hold, shared pages counted once."""
    total = 0.0
    for pid in (os.getpid(), *(p.pid for p in multiprocessing.active_children())):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += sum(int(kb) for kb in re.findall(r"^Pss:\s+(\d+) kB", text, flags=re.M)) / 1024
    return total


def main(text: str) -> None:
    warnings.simplefilter("ignore")
    given: dict[str, Any] = json.loads(text)
    print(json.dumps(asdict(run(replace(Race("", "", 0, ""), **given)))))


if __name__ == "__main__":
    main(sys.argv[1])
