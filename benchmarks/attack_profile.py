"""Where the time of AutoAttack's parts goes, for the networks of the benchmark.

    python benchmarks/attack_profile.py --checkpoint resnet2b.pth=examples/resnet2b.py:ResNet2B

One process and one thread, a fixed number of images that survive. Time is split into the passes of
the network, the arithmetic of the attack's steps, and the loop around them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from survivors import load_models, parse_model_arguments, robust_images
from torch import nn

from buttress.attacks import ATTACKS, problem
from buttress.attacks.core import create_attack
from buttress.attacks.square import speculative as square_sprint
from buttress.attacks.square.proposals import LinfProposals, WindowProposals
from buttress.bench import models as networks
from buttress.engine import batching as loop
from buttress.engine.fast_model import FastModel, prepare
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.threats.norm_ball import Threat

PROFILED_ATTACKS: dict[str, dict[str, Any]] = {
    "apgd-t": {"steps": 30, "targets": 1},
    "fab-t": {"steps": 30, "targets": 1},
    "square": {"queries": 1000},
}
IMAGES = 32
seconds_spent: dict[str, float] = defaultdict(float)


def time_calls(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds_spent[name] += time.perf_counter() - started

    return wrapper


class TimedModel(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.call = time_calls("passes", net)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x)


def main() -> None:
    args = parse_model_arguments(__doc__)
    torch.set_num_threads(1)
    problem.input_gradient = time_calls("passes", problem.input_gradient)
    loop.BestPoints.update = time_calls("loop", loop.BestPoints.update)  # type: ignore[method-assign]
    for name in PROFILED_ATTACKS:
        kind = ATTACKS.get(name)
        kind.next_points = time_calls("steps", kind.next_points)  # type: ignore[method-assign]
    in_sprints = (
        (WindowProposals, "select_queries"),
        (LinfProposals, "apply_to"),
    )
    for owner, name in (*in_sprints, (square_sprint, "draw_proposals")):
        setattr(owner, name, time_calls("steps", getattr(owner, name)))
    print("| network | attack | passes | steps | loop | seconds per image |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, model in load_models(args):
        threat = Threat.parse(networks.benchmark_model(name).threats[0])
        x, y = robust_images(model, args.data, threat, IMAGES)
        selected = prepare(model, x)
        selected.optimize_forward()
        fast_model = FastModel(TimedModel(selected.module))
        for attack, options in PROFILED_ATTACKS.items():
            seconds_spent.clear()
            attack_instance, attack_options = (
                create_attack(attack, **options),
                AttackOptions(fast_model=fast_model, workers=1),
            )
            started = time.perf_counter()
            run_attack(attack_instance, model, x, y, threat, options=attack_options)
            total = time.perf_counter() - started
            fractions = [seconds_spent["passes"] / total, seconds_spent["steps"] / total]
            cells = [f"{s:.0%}" for s in (*fractions, 1 - sum(fractions))]
            print(f"| {name} | {attack} | {' | '.join(cells)} | {total / len(x):.3f} |", flush=True)


if __name__ == "__main__":
    main()
