"""Images in [0, 1] with permanent ids and fixed splits, their order and their augmentation."""

from buttress.data import datasets as datasets
from buttress.data import readers as readers
from buttress.data.augment import Augmentation, Mixing
from buttress.data.core import (
    DATASETS,
    Batch,
    Dataset,
    DatasetFacts,
    dataset_facts,
    download_dataset,
    list_datasets,
    load_dataset,
)
from buttress.data.corruptions import (
    CORRUPTIONS,
    corrupt,
    corrupt_dataset,
    find_official_corruption,
    list_corruptions,
)
from buttress.data.mixed import MixedDataset, epoch_permutation, mixed_batches
from buttress.results.run_spec import list_augmentations

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "Augmentation",
    "Batch",
    "Dataset",
    "DatasetFacts",
    "MixedDataset",
    "Mixing",
    "corrupt",
    "corrupt_dataset",
    "dataset_facts",
    "download_dataset",
    "epoch_permutation",
    "find_official_corruption",
    "list_augmentations",
    "list_corruptions",
    "list_datasets",
    "load_dataset",
    "mixed_batches",
]
