"""CIFAR-100 (Krizhevsky 2009): 60,000 natural images of 32x32 in a hundred classes."""

from __future__ import annotations

from pathlib import Path

from buttress.data.cifar import Cifar, get_cifar, load_cifar
from buttress.data.core import DATASETS, SILENT, Dataset, Facts
from buttress.progress import Progress

NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
    crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
    keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse
    mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy
    porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper
    snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television
    tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR100 = Cifar(
    name="cifar100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    train=("cifar-100-python/train",),
    test="cifar-100-python/test",
    label_key=b"fine_labels",
    classes=tuple(NAMES.split()),
    mean=(0.5071, 0.4865, 0.4409),  # as published: four digits
    std=(0.2673, 0.2564, 0.2762),
    md5="eb9058c3a382ffc7106e4002c42a8d85",
)


def get_cifar100(progress: Progress) -> Path:
    return get_cifar(CIFAR100, progress, {})


@DATASETS.register(
    "cifar100",
    tags=("download", "natural"),
    get=get_cifar100,
    facts=Facts(49_000, 10_000, 100, (3, 32, 32), CIFAR100.mean, CIFAR100.std),
)
def cifar100(split: str, *, image_size: int | None = None, progress: Progress = SILENT) -> Dataset:
    """CIFAR-100: natural images of 32x32 in 100 classes; val is 1,000 of the training images."""
    return load_cifar(CIFAR100, split, image_size)
