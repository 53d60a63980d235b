"""What measurements of attacks begin with: a network of the races, and images that survive."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from torch import Tensor, nn

from buttress.attacks.call import create_attack, run_attack
from buttress.bench import networks
from buttress.progress import Silent
from buttress.threat import Threat

SOME = 10  # times as many images are looked through


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--networks", default="small,slim,vit")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--checkpoint")
    return parser.parse_args()


def loaded(args: argparse.Namespace) -> Iterator[tuple[str, nn.Module]]:
    """The networks that were asked for; a checkpoint stands for the small one."""
    for name in args.networks.split(","):
        checkpoint = args.checkpoint if name == "small" else None
        if checkpoint is None:
            networks.make(name, args.data, Silent())
        yield name, networks.load(name, args.data, checkpoint)


def survivors(model: nn.Module, data: str, threat: Threat, count: int) -> tuple[Tensor, Tensor]:
    """The first images that a short attack leaves."""
    x, y = networks.images(data, SOME * count)
    quick = run_attack(create_attack("pgd", loss="margin"), model, x, y, threat)
    return x[~quick.broken][:count], y[~quick.broken][:count]
