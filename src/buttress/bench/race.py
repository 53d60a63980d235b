"""One racer on one network, in a process of its own, so that memory and time are its own.

    python -m buttress.bench.race '{"racer": "buttress fast", "network": "vit", ...}'

The result is printed as one line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from buttress.bench import networks
from buttress.bench.racers import RACERS, Found, Racer
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
    warm: bool = False  # run once before it counts


@dataclass(frozen=True)
class Result:
    seconds: float
    robust: int  # images that are still right
    forward: float  # passes per image
    backward: float
    memory: float  # MB by which the peak of the process grew
    floor: float  # seconds of the same passes and nothing else


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
    if race.warm:
        racer(model, x, y, threat)
    counting = Counting(model).eval()
    before = peak()
    found, seconds = _timed(racer, model if "buttress" in race.racer else counting, x, y, threat)
    memory = peak() - before
    passes = found.passes or (
        counting.forward_count / len(x),
        counting.backward_count / len(x),
    )
    with torch.no_grad():
        robust = int((model(found.x_adv).argmax(1) == y).sum())
    return Result(seconds, robust, *passes, memory, floor(model, x, *passes))


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


def peak() -> float:
    """The most memory this process ever held, in MB."""
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held / (1 << 20) if sys.platform == "darwin" else held / (1 << 10)


def main(text: str) -> None:
    warnings.simplefilter("ignore")
    given: dict[str, Any] = json.loads(text)
    print(json.dumps(asdict(run(replace(Race("", "", 0, ""), **given)))))


if __name__ == "__main__":
    main(sys.argv[1])
