"""Lets timm import torchvision where its compiled operators do not load.

A torchvision built for another torch (a CUDA build beside a CPU torch, say) leaves out its compiled
operators but still describes `nms` and `qnms`, and fails on ``operator torchvision::nms does not
exist``. Declaring the two is enough: no model here calls them.
"""

from __future__ import annotations

import importlib

import torch

_NMS_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision() -> torch.library.Library | None:
    """Imports torchvision; returns the declarations that were needed for it, if any."""
    try:
        importlib.import_module("torchvision")
    except ImportError:  # timm says more clearly what is missing
        return None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    else:
        return None
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(operator + _NMS_SIGNATURE)
    importlib.import_module("torchvision")
    return library


# The declarations live as long as this object.
DECLARED_OPERATORS = import_torchvision()
