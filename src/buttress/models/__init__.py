"""Architectures by name: one family per file, each from images in [0, 1] to logits."""

# isort: off
from buttress.models import _torchvision as _torchvision  # before anything imports timm
# isort: on

from buttress.models import pvt_v2 as pvt_v2
from buttress.models import resnet as resnet
from buttress.models import vit as vit
from buttress.models import wideresnet as wideresnet
from buttress.models.core import MODELS, PATTERNS, Classifier, Normalize, create_model, list_models
from buttress.models.cost import Cost, cost_of, count_macs, count_parameters
from buttress.models.load import load_model
from buttress.models.parts import Component, Part, blocks_of, component_of

__all__ = [
    "MODELS",
    "PATTERNS",
    "Classifier",
    "Component",
    "Cost",
    "Normalize",
    "Part",
    "blocks_of",
    "component_of",
    "cost_of",
    "count_macs",
    "count_parameters",
    "create_model",
    "list_models",
    "load_model",
]
