"""Random augmentation of batches of training images; randomness is drawn per sample id."""

from buttress.data.augment.augmentation import Augmentation as Augmentation
from buttress.data.augment.crops import random_crop as random_crop
from buttress.data.augment.crops import random_flip as random_flip
from buttress.data.augment.mixing import MixedBatch as MixedBatch
from buttress.data.augment.mixing import Mixing as Mixing
