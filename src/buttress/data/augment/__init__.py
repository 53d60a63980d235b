"""Random changes of whole batches of training images, drawn for each sample from its id."""

from buttress.data.augment.augmentation import Augmentation
from buttress.data.augment.crop import random_crop
from buttress.data.augment.flip import random_flip
from buttress.data.augment.mixing import Mixed, Mixing

__all__ = ["Augmentation", "Mixed", "Mixing", "random_crop", "random_flip"]
