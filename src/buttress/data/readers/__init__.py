"""Readers of images and labels from folders, arrays, archives and hubs."""

from buttress.data.readers import arrays as arrays
from buttress.data.readers import folder as folder
from buttress.data.readers import timm as timm
