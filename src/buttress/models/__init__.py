"""Architectures by name: one family per file, each from images in [0, 1] to logits."""

# isort: off
from buttress.models import _torchvision as _torchvision  # before anything imports timm
# isort: on

from buttress.models import families as families
from buttress.models.catalog import ModelDescription as ModelDescription
from buttress.models.catalog import describe_models as describe_models
from buttress.models.core import MODELS as MODELS
from buttress.models.core import PATTERNS as PATTERNS
from buttress.models.core import Classifier as Classifier
from buttress.models.core import Normalize as Normalize
from buttress.models.core import create_model as create_model
from buttress.models.core import list_models as list_models
from buttress.models.cost import ModelCost as ModelCost
from buttress.models.cost import PassCount as PassCount
from buttress.models.cost import count_macs as count_macs
from buttress.models.cost import count_parameters as count_parameters
from buttress.models.cost import model_cost as model_cost
from buttress.models.loading import folder as _folder  # noqa: F401
from buttress.models.loading import function as _function  # noqa: F401
from buttress.models.loading import onnx as _onnx  # noqa: F401
from buttress.models.loading import registered as _registered  # noqa: F401
from buttress.models.loading import robustbench as _robustbench  # noqa: F401
from buttress.models.loading import run as _run  # noqa: F401
from buttress.models.loading import timm as _timm  # noqa: F401
from buttress.models.loading import weight_file as _weight_file  # noqa: F401
from buttress.models.loading import zoo as _zoo  # noqa: F401
from buttress.models.loading.core import SOURCES as SOURCES
from buttress.models.loading.load import load_model as load_model
from buttress.models.loading.onnx import OnnxModel as OnnxModel
from buttress.models.loading.transfer import TransferReport as TransferReport
from buttress.models.loading.transfer import transfer_weights as transfer_weights
from buttress.models.parts import Component as Component
from buttress.models.parts import NetworkBlock as NetworkBlock
from buttress.models.parts import network_blocks as network_blocks
from buttress.models.parts import parameter_components as parameter_components
from buttress.models.saving import from_pretrained as from_pretrained
from buttress.models.variants import scale_widths as scale_widths
from buttress.models.variants import shrink_last_stage as shrink_last_stage
from buttress.models.variants import stage_config as stage_config
