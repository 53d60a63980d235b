"""Architectures by name: one family per file, each from images in [0, 1] to logits."""

# isort: off
from buttress.models import _torchvision as _torchvision  # before anything imports timm
# isort: on

from buttress.models import families as families
from buttress.models.catalog import ModelDescription, describe_models
from buttress.models.core import MODELS, PATTERNS, Classifier, Normalize, create_model, list_models
from buttress.models.cost import ModelCost, PassCount, count_macs, count_parameters, model_cost
from buttress.models.loading import folder as _folder  # noqa: F401
from buttress.models.loading import function as _function  # noqa: F401
from buttress.models.loading import onnx as _onnx  # noqa: F401
from buttress.models.loading import registered as _registered  # noqa: F401
from buttress.models.loading import robustbench as _robustbench  # noqa: F401
from buttress.models.loading import run as _run  # noqa: F401
from buttress.models.loading import timm as _timm  # noqa: F401
from buttress.models.loading import weight_file as _weight_file  # noqa: F401
from buttress.models.loading.core import SOURCES
from buttress.models.loading.load import load_model
from buttress.models.loading.onnx import OnnxModel
from buttress.models.loading.transfer import TransferReport, transfer_weights
from buttress.models.parts import Component, NetworkBlock, network_blocks, parameter_components
from buttress.models.variants import scale_widths, shrink_last_stage, stage_config

__all__ = [
    "MODELS",
    "PATTERNS",
    "SOURCES",
    "Classifier",
    "Component",
    "ModelCost",
    "ModelDescription",
    "NetworkBlock",
    "Normalize",
    "OnnxModel",
    "PassCount",
    "TransferReport",
    "count_macs",
    "count_parameters",
    "create_model",
    "describe_models",
    "list_models",
    "load_model",
    "model_cost",
    "network_blocks",
    "parameter_components",
    "scale_widths",
    "shrink_last_stage",
    "stage_config",
    "transfer_weights",
]
