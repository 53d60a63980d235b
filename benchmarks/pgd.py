"""PGD-20 against its floor, the bare forward and backward passes, and against foolbox.

All contestants attack the same images in one run, taking turns; the table shows medians and
ratios. Run it with ``make bench``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import buttress as bt

STEPS, EPS = 20, 8 / 255


def bare(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """The passes of PGD-20 and nothing else."""
    for _ in range(STEPS):
        point = x.clone().requires_grad_(True)
        torch.autograd.grad(nn.functional.cross_entropy(model(point), y), point)
    with torch.no_grad():
        model(x)
        model(x)


def ours(model: nn.Module, x: Tensor, y: Tensor) -> None:
    bt.attack("pgd", model, x, y, threat=bt.Threat("Linf", EPS), steps=STEPS)


def foolbox_pgd(model: nn.Module, x: Tensor, y: Tensor) -> None:
    import foolbox

    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    attack = foolbox.attacks.LinfPGD(steps=STEPS)
    attack(wrapped, x, y, epsilons=[EPS])


def contestants() -> dict[str, Callable[[nn.Module, Tensor, Tensor], None]]:
    found = {"bare passes": bare, "buttress": ours}
    try:
        import foolbox  # noqa: F401
    except ImportError:
        return found
    return {**found, "foolbox": foolbox_pgd}


def measure(name: str, images: int, repeats: int) -> dict[str, float]:
    """Median seconds of each contestant on one model."""
    model = bt.create_model(name, seed=0).eval().requires_grad_(False)
    x = torch.rand(images, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    racers = contestants()
    times: dict[str, list[float]] = {racer: [] for racer in racers}
    for turn in range(repeats + 1):
        for racer, run in racers.items():
            started = time.perf_counter()
            run(model, x, y)
            if turn:  # the first turn warms up
                times[racer].append(time.perf_counter() - started)
    return {racer: statistics.median(seconds) for racer, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="resnet_tiny,vit_tiny")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = {name: measure(name, args.images, args.repeats) for name in args.models.split(",")}
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"PGD-{STEPS}, Linf 8/255, {args.images} images, median of {args.repeats}")
    for name, times in rows.items():
        for racer, seconds in times.items():
            ratio = seconds / times["bare passes"]
            print(f"{name:14} {racer:12} {seconds:7.2f} s  {ratio:5.2f} x bare passes")


if __name__ == "__main__":
    main()
