"""Images in [0, 1] with permanent ids and fixed splits, their order and their augmentation."""

from buttress.data import datasets as datasets
from buttress.data import readers as readers
from buttress.data.augment import Augmentation as Augmentation
from buttress.data.augment import Mixing as Mixing
from buttress.data.core import DATASETS as DATASETS
from buttress.data.core import Batch as Batch
from buttress.data.core import Dataset as Dataset
from buttress.data.core import DatasetFacts as DatasetFacts
from buttress.data.core import dataset_facts as dataset_facts
from buttress.data.core import download_dataset as download_dataset
from buttress.data.core import list_datasets as list_datasets
from buttress.data.core import load_dataset as load_dataset
from buttress.data.corruptions import CORRUPTIONS as CORRUPTIONS
from buttress.data.corruptions import corrupt as corrupt
from buttress.data.corruptions import corrupt_dataset as corrupt_dataset
from buttress.data.corruptions import find_official_corruption as find_official_corruption
from buttress.data.corruptions import list_corruptions as list_corruptions
from buttress.data.mixed import MixedDataset as MixedDataset
from buttress.data.mixed import epoch_permutation as epoch_permutation
from buttress.data.mixed import mixed_batches as mixed_batches
from buttress.results.run_spec import list_augmentations as list_augmentations
