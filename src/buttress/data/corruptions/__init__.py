"""Common corruptions of images (arXiv:1903.12261): the fifteen standard and four extra ones."""

from buttress.data.corruptions import blur as blur
from buttress.data.corruptions import digital as digital
from buttress.data.corruptions import frost as frost
from buttress.data.corruptions import noise as noise
from buttress.data.corruptions import weather as weather
from buttress.data.corruptions.core import CORRUPTIONS, corrupt, list_corruptions
from buttress.data.corruptions.dataset import corrupt_dataset, find_official_corruption

__all__ = [
    "CORRUPTIONS",
    "corrupt",
    "corrupt_dataset",
    "find_official_corruption",
    "list_corruptions",
]
