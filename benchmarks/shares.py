"""Where the time of AutoAttack's parts goes, for the networks of the benchmark.

    python benchmarks/shares.py --checkpoint resnet2b.pth=examples/resnet2b.py:ResNet2B

One process and one thread, a fixed number of images that survive. Time is split into the passes of
the network, the arithmetic of the attack's steps, and the loop around them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from survivors import arguments, loaded, survivors
from torch import nn

from buttress.attacks import ATTACKS, loop, problem, square_sprint
from buttress.attacks.call import How, create_attack, run_attack
from buttress.attacks.prepare import Prepared, prepare
from buttress.attacks.square_forecast import Hopes
from buttress.attacks.square_patches import Corners, Patches
from buttress.bench import networks
from buttress.threat import Threat

PARTS: dict[str, dict[str, Any]] = {
    "apgd-t": {"steps": 30, "targets": 1},
    "fab-t": {"steps": 30, "targets": 1},
    "square": {"queries": 1000, "forecast": True},
}
IMAGES = 32
spent: dict[str, float] = defaultdict(float)


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - started

    return wrapper


class Timed(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.call = timed("passes", net)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x)


def main() -> None:
    args = arguments(__doc__)
    torch.set_num_threads(1)
    problem.gradient = timed("passes", problem.gradient)
    loop.Best.improve = timed("loop", loop.Best.improve)  # type: ignore[method-assign]
    for name in PARTS:
        kind = ATTACKS.get(name)
        kind.advance = timed("steps", kind.advance)  # type: ignore[method-assign]
    in_sprints = ((Patches, "pick"), (Corners, "on"), (Corners, "effect"), (Hopes, "of_queries"))
    for owner, name in (*in_sprints, (square_sprint, "draw_patches")):
        setattr(owner, name, timed("steps", getattr(owner, name)))
    print("| network | attack | passes | steps | loop | seconds per image |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, model in loaded(args):
        threat = Threat.parse(networks.network(name).threats[0])
        x, y = survivors(model, args.data, threat, IMAGES)
        made = prepare(model, x)
        made.expect_queries()
        ready = Prepared(Timed(made.model))
        for attack, options in PARTS.items():
            spent.clear()
            chosen, how = create_attack(attack, **options), How(prepared=ready, workers=1)
            started = time.perf_counter()
            run_attack(chosen, model, x, y, threat, how=how)
            total = time.perf_counter() - started
            shares = [spent["passes"] / total, spent["steps"] / total]
            cells = [f"{s:.0%}" for s in (*shares, 1 - sum(shares))]
            print(f"| {name} | {attack} | {' | '.join(cells)} | {total / len(x):.3f} |", flush=True)


if __name__ == "__main__":
    main()
