"""Where the CPU time of AutoAttack's parts goes, for the models and norms of the benchmark.

    python benchmarks/attack_profile.py --checkpoint resnet2b.pth=examples/resnet2b.py:ResNet2B

One process and one thread, a fixed number of robust images. Time is split into the passes of the
inference-optimized model, the arithmetic of the attack's steps, and the loop around them; the last
column has all of it relative to the passes.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from buttress.attacks import ATTACKS, problem
from buttress.attacks.core import create_attack
from buttress.attacks.square import speculative
from buttress.attacks.square.proposals import LinfProposals, WindowProposals
from buttress.bench.models import (
    benchmark_model,
    first_test_images,
    load_benchmark_model,
    train_if_missing,
)
from buttress.engine.batching import BestPoints
from buttress.engine.fast_model import FastModel
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.system.progress import SilentProgress
from buttress.threats.core import Threat

PROFILED_ATTACKS: dict[str, dict[str, Any]] = {
    "apgd-t": {"steps": 30, "targets": 1},
    "fab-t": {"steps": 30, "targets": 1},
    "square": {"queries": 1000},
}
IMAGES = {"small": 125}  # as many as each of two processes has in `make bench`; others: 32
CANDIDATE_FACTOR = 10  # times as many images are tried
COLUMNS = (
    *("model", "threat model", "attack", "passes", "steps", "loop"),
    *("seconds per image", "relative to its passes"),
)
seconds_spent: dict[str, float] = defaultdict(float)


def time_calls(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            seconds_spent[name] += time.process_time() - started

    return wrapper


class TimedModel(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.call = time_calls("passes", net)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x)


def instrument() -> None:
    """Time the passes, steps and loop of every attack in this process."""
    problem.input_gradient = time_calls("passes", problem.input_gradient)
    BestPoints.update = time_calls("loop", BestPoints.update)  # type: ignore[method-assign]
    for name in PROFILED_ATTACKS:
        kind = ATTACKS.get(name)
        kind.next_points = time_calls("steps", kind.next_points)  # type: ignore[method-assign]
    steps: tuple[tuple[Any, str], ...] = (
        (WindowProposals, "select_queries"),
        (LinfProposals, "apply_to"),
        (speculative, "draw_proposals"),
    )
    for owner, name in steps:
        setattr(owner, name, time_calls("steps", getattr(owner, name)))


def robust_images(model: nn.Module, data: str, threat: Threat, count: int) -> tuple[Tensor, Tensor]:
    """The first images that stay robust after a short attack."""
    x, y = first_test_images(data, CANDIDATE_FACTOR * count)
    quick = run_attack(create_attack("pgd", loss="margin"), model, x, y, threat)
    return x[~quick.fooled][:count], y[~quick.fooled][:count]


def profile(name: str, model: nn.Module, data: str, threat: Threat) -> None:
    """Print the rows of one model under one threat model."""
    x, y = robust_images(model, data, threat, IMAGES.get(name, 32))
    selected = FastModel.select(model, x)
    selected.optimize_forward()
    options = AttackOptions(fast_model=FastModel(TimedModel(selected.module)), workers=1)
    for attack, arguments in PROFILED_ATTACKS.items():
        seconds_spent.clear()
        started = time.process_time()
        run_attack(create_attack(attack, **arguments), model, x, y, threat, options=options)
        total = time.process_time() - started
        fractions = [seconds_spent["passes"] / total, seconds_spent["steps"] / total]
        cells = [f"{s:.0%}" for s in (*fractions, 1 - sum(fractions))]
        cells += [f"{total / len(x):.3f}", f"{total / seconds_spent['passes']:.2f}"]
        print(f"| {name} | {threat} | {attack} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="small,slim,vit,coatnet")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--checkpoint", help="FILE=file.py:function, weights of the small model")
    args = parser.parse_args()
    torch.set_num_threads(1)
    instrument()
    print(f"| {' | '.join(COLUMNS)} |")
    print("|" + " --- |" * len(COLUMNS))
    for name in args.models.split(","):
        checkpoint = args.checkpoint if name == "small" else None
        if checkpoint is None:
            train_if_missing(name, args.data, SilentProgress())
        model = load_benchmark_model(name, args.data, checkpoint)
        for threat in benchmark_model(name).threats:
            profile(name, model, args.data, Threat.parse(threat))


if __name__ == "__main__":
    main()
