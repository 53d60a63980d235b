"""``FILE.py:FUNCTION``: the network that a function in a file of your own returns."""

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
from buttress.models.core import Classifier, create_model
from buttress.models.factory import Shape, call_factory
from buttress.models.sources.core import SOURCES, Source, Wanted, is_function


@SOURCES.register("function", form="FILE.py:FUNCTION")
class Function(Source):
    """A function or class in a Python file of yours; the file is run, because you named it."""

    builds = True

    def reads(self, what: str) -> bool:
        return is_function(what)

    def build(self, name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
        return build_function(name, shape, options)

    def open(self, what: str, wanted: Wanted) -> Classifier:
        wanted.refuse_model(what)
        return create_model(
            what, **wanted.shape(), mean=wanted.mean, std=wanted.std, options=wanted.options, seed=0
        )


def build_function(name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
    """The network that a function in a Python file returns. Running the file is trusting it."""
    location, _, function = name.rpartition(":")
    path = Path(location).expanduser().resolve()
    if not path.is_file():
        raise UserError(f"a model {name!r} needs the file {location}, which does not exist")
    with _beside(path):
        module = _run(path, name)
        factory = getattr(module, function, None)
        if not callable(factory):
            values = vars(module).items()
            known = [n for n, v in values if getattr(v, "__module__", "") == module.__name__]
            raise UserError(f"{location} has no function {function!r}; it has: {', '.join(known)}")
        net = call_factory(name, factory, shape, options)
    if not isinstance(net, nn.Module):
        raise UserError(f"{name} must return a torch.nn.Module, but returned {type(net).__name__}")
    return net


def _run(path: Path, name: str) -> ModuleType:
    """Runs a file as a module of its own, so that two files of one name do not meet."""
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
def _beside(path: Path) -> Iterator[None]:
    """Lets a file import its neighbours, as ``python file.py`` would."""
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
