"""Models attacked in benchmarks: trained on first use, or from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from buttress.data import load_dataset
from buttress.errors import UserError
from buttress.models import load_model
from buttress.results.run_spec import Recipe
from buttress.system.files import cache_dir
from buttress.system.progress import Progress
from buttress.training import train

MAX_TRAIN_IMAGES = 10_000  # maximum number of training images
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)


@dataclass(frozen=True)
class BenchmarkModel:
    """A model to attack, with eps at which some images are fooled and some stay robust."""

    title: str
    model: str  # a registered name
    images: int  # for AutoAttack: a robust image costs the reference thousands of passes
    epochs: int
    threats: tuple[str, ...] = ("Linf:4/255", "L2:0.25", "L1:5")
    pgd_images: int = 256  # for PGD: a run should take some seconds, with preparation


BENCHMARK_MODELS = {
    "small": BenchmarkModel(
        "small model", "resnet_tiny", 500, 10, ("Linf:2/255", "L2:0.25", "L1:5"), 4096
    ),
    "slim": BenchmarkModel("slim ResNet-18", "resnet_18_slim", 24, 4),
    "vit": BenchmarkModel("ViT mini", "vit_mini", 64, 8, pgd_images=512),
    "coatnet": BenchmarkModel("CoAtNet mini", "coatnet_cctt_mini", 64, 8, pgd_images=512),
}


def benchmark_model(name: str) -> BenchmarkModel:
    if name not in BENCHMARK_MODELS:
        known = ", ".join(BENCHMARK_MODELS)
        raise UserError(f"a model of the benchmarks must be one of {known}, but got {name!r}")
    return BENCHMARK_MODELS[name]


def benchmark_recipe(model: BenchmarkModel) -> Recipe:
    """Recipe of a few minutes of adversarial training, enough for nonzero robust accuracy."""
    return Recipe.parse(
        {
            "name": "bench",
            "epochs": model.epochs,
            "objective": {"name": "pgd_at", "args": {"steps": 1, "rel_step": 1.25}},
            "threat": "Linf:4/255",
            "optimizer": {"name": "adamw", "lr": 3e-3, "weight_decay": 0.05},
            "schedule": {"name": "cosine", "warmup_epochs": 1},
            "augmentation": {"crop_padding": 4, "horizontal_flip": True},
            "validation": {"every": model.epochs},
        },
        "the recipe of the benchmark",
    )


def cached_model_dir(name: str, data: str) -> Path:
    """Folder where a trained model is cached for the next benchmark."""
    return cache_dir() / "bench" / f"{name}-{data}"


def train_if_missing(name: str, data: str, progress: Progress) -> None:
    """Train a model unless it is cached."""
    benchmark, count = benchmark_model(name), len(load_dataset(data, "train"))
    limit = MAX_TRAIN_IMAGES if count > MAX_TRAIN_IMAGES else None
    train(
        benchmark.model,
        data,
        benchmark_recipe(benchmark),
        cached_model_dir(name, data),
        limit=limit,
        progress=progress,
    )


def load_benchmark_model(name: str, data: str, checkpoint: str | None) -> nn.Module:
    """Load the frozen model; from ``FILE=file.py:function`` if a checkpoint is given."""
    if checkpoint is None:
        return load_model(cached_model_dir(name, data)).eval().requires_grad_(False)
    path, _, structure = checkpoint.partition("=")
    if not structure:
        raise UserError(f"a checkpoint is given as FILE=file.py:function, but got {checkpoint!r}")
    return load_model(path, model=structure, mean=MEAN, std=STD).eval().requires_grad_(False)


def first_test_images(data: str, count: int) -> tuple[Tensor, Tensor]:
    x, y, _ = load_dataset(data, "test", limit=count).take(torch.arange(count))
    return x, y
