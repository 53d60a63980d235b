"""What measurements of attacks begin with: a network of the races, and images that survive."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from torch import Tensor, nn

from buttress.attacks.core import create_attack
from buttress.bench import models as networks
from buttress.engine.run import run_attack
from buttress.system.progress import SilentProgress
from buttress.threats.norm_ball import Threat

CANDIDATE_FACTOR = 10  # times as many images are looked through


def parse_model_arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--networks", default="small,slim,vit")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--checkpoint")
    return parser.parse_args()


def load_models(args: argparse.Namespace) -> Iterator[tuple[str, nn.Module]]:
    """The networks that were asked for; a checkpoint stands for the small one."""
    for name in args.networks.split(","):
        checkpoint = args.checkpoint if name == "small" else None
        if checkpoint is None:
            networks.train_if_missing(name, args.data, SilentProgress())
        yield name, networks.load_benchmark_model(name, args.data, checkpoint)


def robust_images(model: nn.Module, data: str, threat: Threat, count: int) -> tuple[Tensor, Tensor]:
    """The first images that a short attack leaves."""
    x, y = networks.first_test_images(data, CANDIDATE_FACTOR * count)
    quick = run_attack(create_attack("pgd", loss="margin"), model, x, y, threat)
    return x[~quick.fooled][:count], y[~quick.fooled][:count]
