"""Images in [0, 1] with permanent ids and fixed splits, their order and their augmentation."""

from buttress.data import cifar10 as _cifar10  # noqa: F401
from buttress.data import digits as _digits  # noqa: F401
from buttress.data import folder as _folder  # noqa: F401
from buttress.data.augment import Augmentation, Mixed, Mixing
from buttress.data.core import (
    DATASETS,
    Batch,
    Dataset,
    get_dataset,
    list_datasets,
    load_dataset,
)
from buttress.data.order import epoch_order
from buttress.records.augmentation import list_augmentations

__all__ = [
    "DATASETS",
    "Augmentation",
    "Batch",
    "Dataset",
    "Mixed",
    "Mixing",
    "epoch_order",
    "get_dataset",
    "list_augmentations",
    "list_datasets",
    "load_dataset",
]
