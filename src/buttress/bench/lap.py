"""One trainer on one network for a few epochs of PGD-10 training, in a process of its own.

    python -m buttress.bench.lap '{"trainer": "buttress", "network": "vit_mini", ...}'

The result is printed as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.attacks import attack
from buttress.data import Dataset, load_dataset
from buttress.models.checkpoint import load_checkpoint
from buttress.records.spec import Recipe
from buttress.registry import Registry
from buttress.training.train import build, resolve, train_run

EPS, STEP, STEPS = 8 / 255, 2 / 255, 10
BATCH, RATE = 128, 0.05
TEST_IMAGES = 500


@dataclass(frozen=True)
class Lap:
    """What one process does."""

    trainer: str
    network: str
    images: int
    epochs: int = 1
    data: str = "cifar10"


@dataclass(frozen=True)
class Time:
    seconds: float  # of training alone
    clean: float  # accuracy afterwards
    robust: float  # under PGD-20
    judged: int  # test images that both are shares of


Trainer = Callable[[Lap, Dataset], tuple[nn.Module, float]]
TRAINERS: Registry[Trainer] = Registry("trainer")


def recipe(lap: Lap) -> Recipe:
    """What all trainers do: SGD on what PGD-10 finds at the images as they are."""
    return Recipe.parse(
        {
            "epochs": lap.epochs,
            "batch_size": BATCH,
            "objective": {"name": "pgd_at", "args": {"steps": STEPS, "rel_step": STEP / EPS}},
            "threat": "Linf:8/255",
            "optimiser": {"name": "sgd", "lr": RATE},
            "schedule": {"name": "constant"},
            "validation": {"attack": {"name": "pgd", "args": {"steps": 1}}, "limit": 16},
        },
        "the recipe of the benchmark",
    )


def fresh(lap: Lap) -> nn.Module:
    return build(resolve(lap.network, lap.data, recipe(lap)))


def _ours(devices: int) -> Trainer:
    def trainer(lap: Lap, data: Dataset) -> tuple[nn.Module, float]:
        spec = resolve(lap.network, lap.data, recipe(lap), limit=lap.images)
        with tempfile.TemporaryDirectory() as place:
            run = train_run(spec, f"{place}/run", device="cpu", devices=devices)
            model = build(spec)
            model.load_state_dict(load_checkpoint(run.checkpoint("last"))["model"])
            seconds = sum(len(data) / row["images_per_second"] for row in run.history)
        return model, seconds

    return trainer


TRAINERS.register("buttress", package="buttress")(_ours(1))
TRAINERS.register("buttress, two processes", package="buttress")(_ours(2))


def batches(data: Dataset, epochs: int) -> list[tuple[Tensor, Tensor]]:
    """Batches in random order, made before the clock starts."""
    found, source = [], torch.Generator().manual_seed(0)
    for _ in range(epochs):
        order = torch.randperm(len(data), generator=source)
        for rows in order.split(BATCH):
            x, y, _ = data.take(rows)
            found.append((x, y))
    return found


@TRAINERS.register("bare passes", package="torch")
def bare(lap: Lap, data: Dataset) -> tuple[nn.Module, float]:
    """Ten passes to the images and one to the weights, and nothing else."""
    model, given = fresh(lap), batches(data, lap.epochs)
    started = time.perf_counter()
    for x, y in given:
        model.eval().requires_grad_(False)
        for _ in range(STEPS):
            point = x.detach().requires_grad_(True)
            torch.autograd.grad(F.cross_entropy(model(point), y, reduction="sum"), point)
        model.train().requires_grad_(True)
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
    return model, time.perf_counter() - started


def _textbook(slope: Callable[[Tensor, Tensor], Tensor]) -> Trainer:
    """The loop that papers print; ``slope`` is how it gets the gradient of a loss at images."""

    def trainer(lap: Lap, data: Dataset) -> tuple[nn.Module, float]:
        model, given = fresh(lap), batches(data, lap.epochs)
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
        started = time.perf_counter()
        for x, y in given:
            model.eval()
            x_adv = (x + torch.empty_like(x).uniform_(-EPS, EPS)).clamp(0, 1)
            for _ in range(STEPS):
                x_adv.requires_grad_(True)
                grad = slope(F.cross_entropy(model(x_adv), y), x_adv)
                x_adv = x_adv.detach() + STEP * grad.sign()
                x_adv = torch.min(torch.max(x_adv, x - EPS), x + EPS).clamp(0, 1)
            model.train()
            optimiser.zero_grad()
            F.cross_entropy(model(x_adv.detach()), y).backward()
            optimiser.step()
        return model, time.perf_counter() - started

    return trainer


def _of_all(loss: Tensor, x: Tensor) -> Tensor:
    """As most printed loops have it: the gradients of all weights come along."""
    loss.backward()
    assert x.grad is not None
    return x.grad


def _of_images(loss: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(loss, x)[0]


TRAINERS.register("textbook loop", package="torch")(_textbook(_of_all))
TRAINERS.register("textbook loop, gradients of images only", package="torch")(_textbook(_of_images))


@TRAINERS.register("ART", package="art")
def art(lap: Lap, data: Dataset) -> tuple[nn.Module, float]:
    from art.defences.trainer import AdversarialTrainerMadryPGD
    from art.estimators.classification import (
        PyTorchClassifier,
    )

    model, given = fresh(lap), batches(data, lap.epochs)
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    classifier = PyTorchClassifier(
        model, nn.CrossEntropyLoss(), data.shape, data.num_classes, optimiser,
        clip_values=(0.0, 1.0), device_type="cpu",
    )  # fmt: skip
    trainer = AdversarialTrainerMadryPGD(
        classifier, nb_epochs=1, batch_size=BATCH, eps=EPS, eps_step=STEP, max_iter=STEPS,
        num_random_init=1,
    )  # fmt: skip
    x, y = (torch.cat(part).numpy() for part in zip(*given, strict=True))
    started = time.perf_counter()
    trainer.fit(x, y, nb_epochs=1)
    return model, time.perf_counter() - started


@TRAINERS.register("robustness", package="robustness")
def robustness(lap: Lap, data: Dataset) -> tuple[nn.Module, float]:
    from robustness.attacker import AttackerModel  # type: ignore[import-not-found]
    from robustness.datasets import CIFAR  # type: ignore[import-not-found]

    model, given = fresh(lap), batches(data, lap.epochs)
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    attacker = AttackerModel(model, CIFAR("."))
    options = {"constraint": "inf", "eps": EPS, "step_size": STEP, "iterations": STEPS}
    started = time.perf_counter()
    for x, y in given:
        attacker.train()
        logits, _ = attacker(x, y, make_adv=True, random_start=True, **options)
        optimiser.zero_grad()
        F.cross_entropy(logits, y).backward()
        optimiser.step()
    return model, time.perf_counter() - started


def run(lap: Lap) -> Time:
    """Runs a lap in this process."""
    data = load_dataset(lap.data, "train", limit=lap.images)
    model, seconds = TRAINERS.get(lap.trainer)(lap, data)
    test = load_dataset(lap.data, "test")
    x, y, _ = test.take(torch.arange(min(TEST_IMAGES, len(test))))
    model.eval().requires_grad_(False)
    moved = attack("pgd", model, x, y, threat="Linf:8/255", steps=20, rel_step=0.1)
    with torch.no_grad():
        clean, robust = (float((model(z).argmax(1) == y).float().mean()) for z in (x, moved))
    return Time(seconds, clean, robust, len(y))


def main(text: str) -> None:
    warnings.simplefilter("ignore")
    given: dict[str, Any] = json.loads(text)
    print(json.dumps(asdict(run(Lap(**given)))))


if __name__ == "__main__":
    main(sys.argv[1])
