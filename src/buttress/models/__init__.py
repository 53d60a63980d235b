"""Architectures by name: one family per file, each from images in [0, 1] to logits."""

# isort: off
from buttress.models import _torchvision as _torchvision  # before anything imports timm
# isort: on

from buttress.models import botnet as botnet
from buttress.models import cait as cait
from buttress.models import cct as cct
from buttress.models import ceit as ceit
from buttress.models import coatnet as coatnet
from buttress.models import cpvt as cpvt
from buttress.models import cvt as cvt
from buttress.models import darts as darts
from buttress.models import deit as deit
from buttress.models import densenet as densenet
from buttress.models import levit as levit
from buttress.models import mlp_mixer as mlp_mixer
from buttress.models import mobilevit as mobilevit
from buttress.models import poolformer as poolformer
from buttress.models import preact_resnet as preact_resnet
from buttress.models import pvt_v2 as pvt_v2
from buttress.models import resnet as resnet
from buttress.models import resnext as resnext
from buttress.models import swin as swin
from buttress.models import vgg as vgg
from buttress.models import vit as vit
from buttress.models import vitae as vitae
from buttress.models import wideresnet as wideresnet
from buttress.models import xcit as xcit
from buttress.models.catalogue import Description, describe_models
from buttress.models.core import MODELS, PATTERNS, Classifier, Normalize, create_model, list_models
from buttress.models.cost import Cost, cost_of, count_macs, count_parameters
from buttress.models.load import load_model
from buttress.models.onnx import OnnxNetwork
from buttress.models.parts import Component, Part, blocks_of, component_of
from buttress.models.shrink import scale_widths, shrink_last_stage
from buttress.models.sources import checkpoint as _checkpoint  # noqa: F401
from buttress.models.sources import folder as _folder  # noqa: F401
from buttress.models.sources import function as _function  # noqa: F401
from buttress.models.sources import hub as _hub  # noqa: F401
from buttress.models.sources import name as _name  # noqa: F401
from buttress.models.sources import onnx as _onnx  # noqa: F401
from buttress.models.sources import robustbench as _robustbench  # noqa: F401
from buttress.models.sources import run as _run  # noqa: F401
from buttress.models.sources import timm as _timm  # noqa: F401
from buttress.models.sources.core import SOURCES
from buttress.models.staged import plan_of
from buttress.models.transfer import Transferred, transfer

__all__ = [
    "MODELS",
    "PATTERNS",
    "SOURCES",
    "Classifier",
    "Component",
    "Cost",
    "Description",
    "Normalize",
    "OnnxNetwork",
    "Part",
    "Transferred",
    "blocks_of",
    "component_of",
    "cost_of",
    "count_macs",
    "count_parameters",
    "create_model",
    "describe_models",
    "list_models",
    "load_model",
    "plan_of",
    "scale_widths",
    "shrink_last_stage",
    "transfer",
]
