"""Images in [0, 1] with permanent ids and fixed splits, their order and their augmentation."""

from buttress.data import caltech101 as _caltech101  # noqa: F401
from buttress.data import cifar10 as _cifar10  # noqa: F401
from buttress.data import cifar100 as _cifar100  # noqa: F401
from buttress.data import digits as _digits  # noqa: F401
from buttress.data import extra as _extra  # noqa: F401
from buttress.data import flowers102 as _flowers102  # noqa: F401
from buttress.data import folder as _folder  # noqa: F401
from buttress.data import imagenet as _imagenet  # noqa: F401
from buttress.data import imagenet_100 as _imagenet_100  # noqa: F401
from buttress.data import imagenet_rb5000 as _imagenet_rb5000  # noqa: F401
from buttress.data import imagenette as _imagenette  # noqa: F401
from buttress.data import timm_names as _timm_names  # noqa: F401
from buttress.data import tiny_imagenet as _tiny_imagenet  # noqa: F401
from buttress.data.augment import Augmentation, Mixing
from buttress.data.core import (
    DATASETS,
    Batch,
    Dataset,
    Facts,
    facts_of,
    get_dataset,
    list_datasets,
    load_dataset,
)
from buttress.data.corruptions import (
    CORRUPTIONS,
    corrupt,
    corrupted,
    find_official,
    list_corruptions,
)
from buttress.data.mixed import Mixed, mixed_order
from buttress.data.order import epoch_order
from buttress.records.augmentation import list_augmentations

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "Augmentation",
    "Batch",
    "Dataset",
    "Facts",
    "Mixed",
    "Mixing",
    "corrupt",
    "corrupted",
    "epoch_order",
    "facts_of",
    "find_official",
    "get_dataset",
    "list_augmentations",
    "list_corruptions",
    "list_datasets",
    "load_dataset",
    "mixed_order",
]
