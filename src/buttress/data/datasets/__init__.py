"""Datasets by name: one per file, and an import line below."""

from buttress.data.datasets import caltech101 as caltech101
from buttress.data.datasets import cifar as cifar
from buttress.data.datasets import cifar10_sample as cifar10_sample
from buttress.data.datasets import digits as digits
from buttress.data.datasets import flowers102 as flowers102
from buttress.data.datasets import imagenet as imagenet
from buttress.data.datasets import imagenette as imagenette
from buttress.data.datasets import tiny_imagenet as tiny_imagenet
