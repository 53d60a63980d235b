"""Imports torchvision and timm: quickly, and where torchvision's compiled operators do not load.

A torchvision built for another torch (a CUDA build beside a CPU torch, say) leaves out its compiled
operators but still describes `nms` and `qnms`, and fails on ``operator torchvision::nms does not
exist``. Declaring the two is enough: no model here calls them.

Both packages also import the compiler of torch, which takes a second, for two functions: a test
that box operators make, and a decorator. They get these in forms that import the compiler when
they are called.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch._compile import _disable_dynamo

_NMS_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_COMPILER, _COMPILER_UTILS = "torch._dynamo", "torch._dynamo.utils"


def import_timm() -> torch.library.Library | None:
    """Imports torchvision and timm; returns the declarations that were needed, if any."""
    try:
        with deferred_compiler(), paused_garbage_collection():
            library = import_torchvision()
            importlib.import_module("timm")
            return library
    except (ImportError, AttributeError):  # other versions, which need more of the compiler
        with contextlib.suppress(ImportError):  # timm says more clearly what is missing
            return import_torchvision()
    return None


def import_torchvision() -> torch.library.Library | None:
    """Imports torchvision, with its operators declared if that is what it lacks."""
    try:
        importlib.import_module("torchvision")
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


@contextlib.contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Imports make many objects and no garbage: looking for it takes a quarter of their time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def deferred_compiler() -> Iterator[None]:
    """Stands in for the compiler inside the block, unless it is imported already."""
    if _COMPILER in sys.modules:
        yield
        return
    compiler, utils = ModuleType(_COMPILER), ModuleType(_COMPILER_UTILS)
    vars(compiler).update(disable=_disable_compiler, utils=utils)
    vars(utils).update(is_compile_supported=_is_compile_supported)
    stubs = {_COMPILER: compiler, _COMPILER_UTILS: utils}
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name in stubs:
            sys.modules.pop(name, None)


def _disable_compiler(
    fn: Callable[..., Any] | None = None, recursive: bool = True, *, reason: str | None = None
) -> Callable[..., Any]:
    return _disable_dynamo(fn, recursive)


def _is_compile_supported(device_type: str) -> bool:
    return bool(importlib.import_module(_COMPILER_UTILS).is_compile_supported(device_type))


# The declarations live as long as this object.
DECLARED_OPERATORS = import_timm()
