"""Training benchmarks: steps of a recipe, and epochs of PGD-10 beside other libraries."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.bench.repeats import (
    SubprocessJob,
    median_row,
    run_interleaved,
    write_results,
)
from buttress.bench.training_steps import STEP_MODELS, StepRun, run_steps, step_table
from buttress.data import Dataset, load_dataset
from buttress.engine import attack
from buttress.errors import UserError
from buttress.models.loading.checkpoint import load_checkpoint
from buttress.registry import Registry
from buttress.results.run_spec import Recipe
from buttress.statistics import wilson_interval
from buttress.system.progress import Progress
from buttress.training.train import build_model, resolve_run_spec, train_run

EPS, STEP_SIZE, STEPS = 8 / 255, 2 / 255, 10
BATCH, LEARNING_RATE = 128, 0.05
TEST_IMAGES = 500


@dataclass(frozen=True)
class TrainerRun:
    """Settings of one process."""

    trainer: str = "buttress"
    model: str = "vit_mini"
    images: int = 1024
    epochs: int = 1
    data: str = "cifar10"


@dataclass(frozen=True)
class TrainerResult:
    seconds: float  # of training alone
    clean_accuracy: float  # afterwards
    robust_accuracy: float  # under PGD-20
    test_images: int  # of both accuracies


Trainer = Callable[[TrainerRun, Dataset], tuple[nn.Module, float]]
TRAINERS: Registry[Trainer] = Registry("trainer")


def trainer_recipe(trainer_run: TrainerRun) -> Recipe:
    """Recipe of all trainers: SGD on PGD-10 adversarial images without augmentation."""
    return Recipe.parse(
        {
            "epochs": trainer_run.epochs,
            "batch_size": BATCH,
            "objective": {"name": "pgd_at", "args": {"steps": STEPS, "rel_step": STEP_SIZE / EPS}},
            "threat": "Linf:8/255",
            "optimizer": {"name": "sgd", "lr": LEARNING_RATE},
            "schedule": {"name": "constant"},
            "validation": {"attack": {"name": "pgd", "args": {"steps": 1}}, "limit": 16},
        },
        "the recipe of the benchmark",
    )


def create_fresh_model(trainer_run: TrainerRun) -> nn.Module:
    return build_model(
        resolve_run_spec(trainer_run.model, trainer_run.data, trainer_recipe(trainer_run))
    )


def _buttress_trainer(devices: int) -> Trainer:
    def trainer(trainer_run: TrainerRun, data: Dataset) -> tuple[nn.Module, float]:
        spec = resolve_run_spec(
            trainer_run.model,
            trainer_run.data,
            trainer_recipe(trainer_run),
            limit=trainer_run.images,
        )
        with tempfile.TemporaryDirectory() as folder:
            run = train_run(spec, f"{folder}/run", device="cpu", devices=devices)
            model = build_model(spec)
            model.load_state_dict(load_checkpoint(run.checkpoint("last"))["model"])
            seconds = sum(len(data) / row["images_per_second"] for row in run.history)
        return model, seconds

    return trainer


TRAINERS.register("buttress", package="buttress")(_buttress_trainer(1))
TRAINERS.register("buttress, two processes", package="buttress")(_buttress_trainer(2))


def shuffled_batches(data: Dataset, epochs: int) -> list[tuple[Tensor, Tensor]]:
    """Batches in random order, created before timing starts."""
    batches, source = [], torch.Generator().manual_seed(0)
    for _ in range(epochs):
        order = torch.randperm(len(data), generator=source)
        for rows in order.split(BATCH):
            x, y, _ = data.take(rows)
            batches.append((x, y))
    return batches


@TRAINERS.register("bare passes", package="torch")
def train_bare_passes(trainer_run: TrainerRun, data: Dataset) -> tuple[nn.Module, float]:
    """Ten backward passes to the images and one to the weights, and nothing else."""
    model, batches = create_fresh_model(trainer_run), shuffled_batches(data, trainer_run.epochs)
    started = time.perf_counter()
    for x, y in batches:
        model.eval().requires_grad_(False)
        for _ in range(STEPS):
            point = x.detach().requires_grad_(True)
            torch.autograd.grad(F.cross_entropy(model(point), y, reduction="sum"), point)
        model.train().requires_grad_(True)
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
    return model, time.perf_counter() - started


def _textbook_trainer(input_gradient: Callable[[Tensor, Tensor], Tensor]) -> Trainer:
    """Textbook training loop; ``input_gradient`` computes the gradient of a loss at images."""

    def trainer(trainer_run: TrainerRun, data: Dataset) -> tuple[nn.Module, float]:
        model, batches = create_fresh_model(trainer_run), shuffled_batches(data, trainer_run.epochs)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
        started = time.perf_counter()
        for x, y in batches:
            model.eval()
            x_adv = (x + torch.empty_like(x).uniform_(-EPS, EPS)).clamp(0, 1)
            for _ in range(STEPS):
                x_adv.requires_grad_(True)
                grad = input_gradient(F.cross_entropy(model(x_adv), y), x_adv)
                x_adv = x_adv.detach() + STEP_SIZE * grad.sign()
                x_adv = torch.min(torch.max(x_adv, x - EPS), x + EPS).clamp(0, 1)
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(x_adv.detach()), y).backward()
            optimizer.step()
        return model, time.perf_counter() - started

    return trainer


def _gradient_by_backward(loss: Tensor, x: Tensor) -> Tensor:
    """Gradient by `backward`, which also computes the gradients of all weights."""
    loss.backward()
    assert x.grad is not None
    return x.grad


def _gradient_of_input(loss: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(loss, x)[0]


TRAINERS.register("textbook loop", package="torch")(_textbook_trainer(_gradient_by_backward))
TRAINERS.register("textbook loop, gradients of images only", package="torch")(
    _textbook_trainer(_gradient_of_input)
)


@TRAINERS.register("ART", package="art")
def train_art(trainer_run: TrainerRun, data: Dataset) -> tuple[nn.Module, float]:
    from art.defences.trainer import AdversarialTrainerMadryPGD
    from art.estimators.classification import PyTorchClassifier

    model, batches = create_fresh_model(trainer_run), shuffled_batches(data, trainer_run.epochs)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    classifier = PyTorchClassifier(
        model, nn.CrossEntropyLoss(), data.shape, data.num_classes, optimizer,
        clip_values=(0.0, 1.0), device_type="cpu",
    )  # fmt: skip
    trainer = AdversarialTrainerMadryPGD(
        classifier, nb_epochs=1, batch_size=BATCH, eps=EPS, eps_step=STEP_SIZE, max_iter=STEPS,
        num_random_init=1,
    )  # fmt: skip
    x, y = (torch.cat(part).numpy() for part in zip(*batches, strict=True))
    started = time.perf_counter()
    trainer.fit(x, y, nb_epochs=1)
    return model, time.perf_counter() - started


@TRAINERS.register("robustness", package="robustness")
def train_robustness(trainer_run: TrainerRun, data: Dataset) -> tuple[nn.Module, float]:
    from robustness.attacker import AttackerModel  # type: ignore[import-not-found]
    from robustness.datasets import CIFAR  # type: ignore[import-not-found]

    model, batches = create_fresh_model(trainer_run), shuffled_batches(data, trainer_run.epochs)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    attacker = AttackerModel(model, CIFAR("."))
    options = {"constraint": "inf", "eps": EPS, "step_size": STEP_SIZE, "iterations": STEPS}
    started = time.perf_counter()
    for x, y in batches:
        attacker.train()
        logits, _ = attacker(x, y, make_adv=True, random_start=True, **options)
        optimizer.zero_grad()
        F.cross_entropy(logits, y).backward()
        optimizer.step()
    return model, time.perf_counter() - started


def run_trainer(trainer_run: TrainerRun) -> TrainerResult:
    """Run one training benchmark in this process."""
    data = load_dataset(trainer_run.data, "train", limit=trainer_run.images)
    model, seconds = TRAINERS.get(trainer_run.trainer)(trainer_run, data)
    test = load_dataset(trainer_run.data, "test")
    x, y, _ = test.take(torch.arange(min(TEST_IMAGES, len(test))))
    model.eval().requires_grad_(False)
    x_adv = attack("pgd", model, x, y, threat="Linf:8/255", steps=20, rel_step=0.1)
    with torch.no_grad():
        clean, robust = (float((model(z).argmax(1) == y).float().mean()) for z in (x, x_adv))
    return TrainerResult(seconds, clean, robust, len(y))


BARE, TEXTBOOK = "bare passes", "textbook loop"


EPOCH_MODELS = "resnet_18_slim,vit_mini"
TRAINING_CASES = ("steps", "epochs")


def benchmark_training(
    settings: TrainerRun,
    cases: Sequence[str],
    models: Sequence[str],
    repeats: int,
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Run the cases on each model, by default on their own; return what is written to ``out``."""
    if unknown := set(cases) - set(TRAINING_CASES):
        raise UserError(
            f"cases must be of {', '.join(TRAINING_CASES)}, but got {', '.join(sorted(unknown))}"
        )
    rows: list[dict[str, Any]] = []
    for model in (models or STEP_MODELS.split(",")) if "steps" in cases else ():
        rows += run_steps(StepRun(model=model, data=settings.data), repeats, progress)
        write_results(out, rows)
    for model in (models or EPOCH_MODELS.split(",")) if "epochs" in cases else ():
        rows += run_trainers(replace(settings, model=model), repeats, progress)
        write_results(out, rows)
    return write_results(out, rows)


def run_trainers(settings: TrainerRun, repeats: int, progress: Progress) -> list[dict[str, Any]]:
    """Run every installed trainer on one model; return a row of medians for each."""
    runs = [
        replace(settings, trainer=entry.name)
        for entry in TRAINERS
        if importlib.util.find_spec(entry.metadata["package"])
    ]
    jobs = {run.trainer: SubprocessJob(run_trainer, run, keep_process=False) for run in runs}
    results = run_interleaved(f"{settings.model}, PGD-10 training", jobs, repeats, progress)
    return [median_row(run, results[run.trainer]) for run in runs if results[run.trainer]]


def training_tables(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Markdown tables: one of all steps, one of each model for epochs."""
    steps = [row for row in rows if "step_seconds" in row]
    rows = [row for row in rows if "step_seconds" not in row]
    if steps:
        yield from step_table(steps)
    for model in dict.fromkeys(row["model"] for row in rows):
        by_trainer = {row["trainer"]: row for row in rows if row["model"] == model}
        first = next(iter(by_trainer.values()))
        yield f"\n{model}, {first['epochs']} x {first['images']} images\n"
        yield (
            "| | seconds | relative to bare passes | relative to the textbook loop "
            "| clean accuracy | robust accuracy, PGD-20 |"
        )
        yield "| --- |" + " --- |" * 5
        for name, row in by_trainer.items():
            cells = [f"{row['seconds']:.1f}"]
            for other in (BARE, TEXTBOOK):
                base = by_trainer.get(other)
                cells.append("" if base is None else f"{row['seconds'] / base['seconds']:.2f}")
            for kind in ("clean", "robust"):
                was_trained = name != BARE
                cells.append(_format_accuracy(row, f"{kind}_accuracy") if was_trained else "")
            yield f"| {name} | " + " | ".join(cells) + " |"


def _format_accuracy(row: dict[str, Any], key: str) -> str:
    """An accuracy with its 95% interval."""
    images = int(row["test_images"])
    low, high = wilson_interval(round(row[key] * images), images)
    return f"{100 * row[key]:.1f}% ({100 * low:.0f} to {100 * high:.0f})"
