"""Common corruptions of images (arXiv:1903.12261): the fifteen standard and four extra ones."""

from buttress.data.corruptions import blur as blur
from buttress.data.corruptions import digital as digital
from buttress.data.corruptions import frost as frost
from buttress.data.corruptions import noise as noise
from buttress.data.corruptions import weather as weather
from buttress.data.corruptions.core import CORRUPTIONS as CORRUPTIONS
from buttress.data.corruptions.core import corrupt as corrupt
from buttress.data.corruptions.core import list_corruptions as list_corruptions
from buttress.data.corruptions.dataset import corrupt_dataset as corrupt_dataset
from buttress.data.corruptions.dataset import find_official_corruption as find_official_corruption
