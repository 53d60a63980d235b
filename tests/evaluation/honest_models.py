"""Models whose robust accuracy can be believed: small ones of every family, trained on digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import buttress as bt
from buttress.data import Dataset, load_dataset
from buttress.errors import DataError
from evaluation.broken_models import SIZE, accuracy, convnet, digits, train

FAMILY_SIZE = 16  # pixels; some families need more
LARGER = {"mobilevit_tiny": 32, "swin_tiny": 32, "vgg_tiny": 32}
TRAIN_EPS = 0.1
CANDIDATE_EPS = (0.2, 0.1, 0.05, 0.025, 0.0125, 0.006, 0.003)
MIN_ROBUST = 0.4  # robust accuracy under a small attack at the eps of the evaluation
ROBUST_FAMILIES = ("resnet_tiny", "vit_tiny", "wrn_tiny", "xcit_tiny", "mlp_mixer_tiny")
ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT.parent / "shared" / "checkpoints" / "resnet2b.pth"
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)


@dataclass(frozen=True)
class HonestModel:
    """How to make a model, and the size of its images."""

    make: Callable[[], nn.Module]
    size: int = SIZE

    def data(self, limit: int) -> Dataset:
        return digits("test", limit, self.size)


@dataclass(frozen=True)
class PublishedModel(HonestModel):
    def data(self, limit: int) -> Dataset:
        return load_dataset("cifar10", "test", limit=limit)


class Normalized(nn.Module):
    """Normalizes each channel, as the first layer of a model does."""

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def of_family(name: str, eps: float = 0.0) -> HonestModel:
    size = LARGER.get(name, FAMILY_SIZE)

    def make() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = bt.create_model(name, num_classes=10, image_size=size)
        return train(model, epochs=6, eps=eps, size=size, lr=2e-3)

    return HonestModel(make, size)


def evaluated_eps(model: nn.Module, data: Dataset) -> float:
    """The largest of some eps at which many images stay robust, so that there is much to check."""
    few = data.select(range(32))
    for eps in CANDIDATE_EPS:
        x_adv = bt.attack("pgd", model, few.images, few.labels, threat=f"Linf:{eps}", steps=10)
        if accuracy(model, x_adv, few.labels) >= MIN_ROBUST:
            return eps
    return CANDIDATE_EPS[-1]


def layer_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(1, channels)


HONEST: dict[str, HonestModel] = {
    **{name: of_family(name) for name in bt.list_models("tiny")},
    **{f"{name}, adversarial training": of_family(name, TRAIN_EPS) for name in ROBUST_FAMILIES},
    "convnet": HonestModel(lambda: train(convnet())),
    "convnet, tanh": HonestModel(lambda: train(convnet(5, 8, nn.Tanh))),
    "convnet, GELU": HonestModel(lambda: train(convnet(6, 8, nn.GELU))),
    "convnet, ReLU6": HonestModel(lambda: train(convnet(7, 8, nn.ReLU6))),
    "convnet, BatchNorm": HonestModel(lambda: train(convnet(8, norm=nn.BatchNorm2d))),
    "convnet, LayerNorm": HonestModel(lambda: train(convnet(9, norm=layer_norm))),
    "convnet, four channels": HonestModel(lambda: train(convnet(10, 4))),
    "convnet, normalized by 0.5 and 0.25": HonestModel(
        lambda: train(convnet(11, first=Normalized(0.5, 0.25)))
    ),
    "convnet, normalized as for ImageNet": HonestModel(
        lambda: train(convnet(12, first=Normalized(0.449, 0.226)))
    ),
    "convnet, adversarial training": HonestModel(lambda: train(convnet(13, 16), eps=TRAIN_EPS)),
    "convnet, adversarial training, BatchNorm": HonestModel(
        lambda: train(convnet(14, norm=nn.BatchNorm2d), eps=TRAIN_EPS)
    ),
}


def published_models() -> dict[str, HonestModel]:
    """A network that others trained and published, if it and CIFAR-10 are on this machine."""
    try:
        load_dataset("cifar10", "test", limit=1)
    except DataError:
        return {}
    if not CHECKPOINT.is_file():
        return {}
    reference = f"{ROOT}/examples/resnet2b.py:ResNet2B"
    make = lambda: bt.load_model(CHECKPOINT, model=reference, mean=CIFAR_MEAN, std=CIFAR_STD)  # noqa: E731
    return {"ResNet-2B, published": PublishedModel(make, 32)}
