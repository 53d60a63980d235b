"""What many tests share: small models with known behaviour."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from buttress.attacks import ATTACKS
from buttress.data import Dataset
from buttress.system.files import cache_dir
from buttress.system.progress import SilentProgress
from buttress.threats import Threat
from buttress.threats.norm_ball import NORMS, Norm, NormBall
from buttress.training.objectives import LossOutput, Objective, TrainingBatch

torch.set_num_threads(1)


class Linear(nn.Module):
    """Logits W x + b of the flattened image: every optimum is known in closed form."""

    def __init__(self, features: int, classes: int, seed: int = 0) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(classes, features, generator=source))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


def small_net(classes: int = 10, channels: int = 3, size: int = 8, seed: int = 0) -> nn.Sequential:
    """A convolutional network with BatchNorm and dropout, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2),
            nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(8 * ((size - 1) // 2) ** 2, classes),
        )  # fmt: skip
    return net.eval()


def taken(objective: Objective, model: nn.Module, step: TrainingBatch) -> LossOutput:
    """The loss of an objective on what its own attack finds."""
    return objective.loss(model, step, objective.find_adversarial(model, step))


class Attention(nn.Module):
    """One block of self-attention over patches of 2 x 2."""

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, 16, 2, 2)
        self.norm, self.mix = nn.LayerNorm(16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(4 * x).flatten(2).transpose(1, 2)
        seen = self.norm(tokens)
        tokens = tokens + self.mix(seen, seen, seen, need_weights=False)[0]
        return self.head(tokens.mean(1))


def attention_net(classes: int = 10, channels: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Attention(classes, channels).eval()


def images(n: int, channels: int = 3, size: int = 8, classes: int = 10) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    x = torch.rand(n, channels, size, size, generator=source)
    return x, torch.randint(classes, (n,), generator=source)


def norms_of(attack: str) -> list[Norm]:
    """The norms in which an attack moves."""
    return [norm for norm in NORMS if ATTACKS.get(attack).supports(NormBall(norm, 0.1))]


def threat_for(attack: str, eps: float = 0.1) -> str:
    """A threat model that an attack takes: a norm ball of this size if it can."""
    if norms := norms_of(attack):
        return f"{norms[0]}:{eps:g}"
    others = ("L0:3", "patch:2", "spatial:30,1") if eps else ("L0:0", "patch:0", "spatial:0,0")
    return next(t for t in others if ATTACKS.get(attack).supports(Threat.parse(t)))


@pytest.fixture
def tiny_data() -> Dataset:
    x, y = images(24, size=8)
    return Dataset.from_arrays(x, y, classes=[str(k) for k in range(10)])


@pytest.fixture(scope="module")
def cifar10() -> Iterator[None]:
    """Lends the CIFAR-10 of the user's cache to the tests of one module."""
    lent, place = Path(os.environ["TESTS_USER_CACHE"]) / "cifar10", cache_dir() / "cifar10"
    if not lent.is_dir():
        pytest.skip("needs CIFAR-10: run `buttress data get cifar10`")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(lent, target_is_directory=True)
    yield
    place.unlink()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may depend on the user's cache is left out of `make test`."""
    for item in items:
        uses = "cifar10" in getattr(item, "fixturenames", ())
        if uses and item.get_closest_marker("reference") is None:
            raise pytest.UsageError(f"{item.nodeid} uses CIFAR-10: mark it `reference`")


def thinned(cases: Sequence[Any], every: int) -> list[Any]:
    """One in so many cases; the others are left to `make test-all`."""
    return [
        case if number % every == 0 else pytest.param(*_all(case), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def _all(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


class Logged(SilentProgress):
    """Remembers what was begun and what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.tasks: list[str] = []

    def add_task(self, description: str, total: float):  # type: ignore[no-untyped-def]
        self.tasks.append(description)
        return super().add_task(description, total)

    def log(self, text: str) -> None:
        self.lines.append(text)
