"""``FILE.py:FUNCTION``: the model that a function in your own file returns."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from buttress.errors import UserError
from buttress.models.core import Classifier
from buttress.models.factory import Shape, call_factory
from buttress.models.loading.core import SOURCES, ModelRequest, ModelSource
from buttress.models.loading.registered import create_requested_model
from buttress.results.model_code import ModelCode, is_function_name, read_model_code, trust_code


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
    with imported_function(name) as factory:
        net = call_factory(name, factory, shape, options)
    if not isinstance(net, nn.Module):
        raise UserError(f"{name} must return a torch.nn.Module, but returned {type(net).__name__}")
    return net


@contextlib.contextmanager
def imported_function(name: str) -> Iterator[Callable[..., Any]]:
    """The function or class that ``FILE.py:FUNCTION`` names; inside, it can import its neighbors.

    The file is run, and its code is trusted from then on, because the user named it.
    """
    code = read_model_code(name)
    trust_code(code.sha256)
    with _importable_folder(code):
        module = _import_file(code.file, name)
        function = getattr(module, code.function, None)
        if not callable(function):
            values = vars(module).items()
            public_names = [n for n, v in values if getattr(v, "__module__", "") == module.__name__]
            raise UserError(
                f"{name.rpartition(':')[0]} has no function {code.function!r}; it has: "
                f"{', '.join(public_names) or 'no functions'}"
            )
        yield function


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
def _importable_folder(code: ModelCode) -> Iterator[None]:
    """Make the file's folder importable, as ``python file.py`` does.

    Modules of the same names from folders of other models are forgotten first, and bytecode is
    neither read nor written, so that nothing but the files decides what is executed.
    """
    folder = str(code.file.parent)
    names = {Path(name).parts[0].removesuffix(".py") for name in code.files}
    for known in [n for n in sys.modules if n.partition(".")[0] in names]:
        if any(_is_loaded_from(sys.modules[known], other) for other in _folders - {folder}):
            del sys.modules[known]
    _folders.add(folder)
    saved = sys.dont_write_bytecode, sys.pycache_prefix
    sys.dont_write_bytecode, sys.pycache_prefix = True, os.devnull
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        sys.dont_write_bytecode, sys.pycache_prefix = saved


_folders: set[str] = set()  # of users' models that this process has imported


def _is_loaded_from(module: ModuleType, folder: str) -> bool:
    return Path(getattr(module, "__file__", None) or "/").is_relative_to(folder)
