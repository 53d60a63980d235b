"""Random augmentation of batches of training images; randomness is drawn per sample id."""

from buttress.data.augment.augmentation import Augmentation
from buttress.data.augment.crops import random_crop, random_flip
from buttress.data.augment.mixing import MixedBatch, Mixing

__all__ = ["Augmentation", "MixedBatch", "Mixing", "random_crop", "random_flip"]
