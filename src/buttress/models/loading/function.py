"""``FILE.py:FUNCTION``: the model that a function in your own file returns."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from buttress.errors import UserError
from buttress.models.core import Classifier
from buttress.models.factory import Shape, call_factory
from buttress.models.loading.core import SOURCES, ModelRequest, ModelSource, is_function_name
from buttress.models.loading.registered import create_requested_model


@SOURCES.register("function", form="FILE.py:FUNCTION")
class FunctionSource(ModelSource):
    """A function or class in a Python file of yours; the file is run, because you named it."""

    is_architecture = True

    def matches(self, name: str) -> bool:
        return is_function_name(name)

    def build(self, name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
        return build_function(name, shape, options)

    def open(self, name: str, request: ModelRequest) -> Classifier:
        return create_requested_model(name, request)


def build_function(name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
    """Build the model that a function in a Python file returns; the file is run."""
    location, _, function = name.rpartition(":")
    path = Path(location).expanduser().resolve()
    if not path.is_file():
        raise UserError(f"model {name!r}: the file {location} does not exist")
    with _importable_folder(path):
        module = _import_file(path, name)
        factory = getattr(module, function, None)
        if not callable(factory):
            values = vars(module).items()
            public_names = [n for n, v in values if getattr(v, "__module__", "") == module.__name__]
            raise UserError(
                f"{location} has no function {function!r}; it has: {', '.join(public_names)}"
            )
        net = call_factory(name, factory, shape, options)
    if not isinstance(net, nn.Module):
        raise UserError(f"{name} must return a torch.nn.Module, but returned {type(net).__name__}")
    return net


def _import_file(path: Path, name: str) -> ModuleType:
    """Import a file as a module under a unique name."""
    unique = f"buttress_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(unique, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[unique]
        raise UserError(f"model {name!r}: running {path} raised {error!r}") from error
    return module


@contextlib.contextmanager
def _importable_folder(path: Path) -> Iterator[None]:
    """Make the file's folder importable, as ``python file.py`` does."""
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
