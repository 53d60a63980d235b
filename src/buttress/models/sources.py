"""Networks from elsewhere: any model of timm, and a function in a file of the user's own."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import timm
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from torch import nn

from buttress.errors import UnknownName, UserError

Shape = Mapping[str, int]  # num_classes, image_size, in_channels

_TIMM = "timm:"


def is_timm(name: str) -> bool:
    return name.startswith(_TIMM)


def is_function(name: str) -> bool:
    """Whether a name is written ``file.py:function``."""
    path, sep, _ = name.rpartition(":")
    return bool(sep) and path.endswith(".py")


def build_timm(name: str, shape: Shape, options: Mapping[str, Any]) -> nn.Module:
    """A timm model with fresh weights; the image size is set where the model has one."""
    architecture = name.removeprefix(_TIMM)
    if not timm.is_model(architecture):
        near = difflib.get_close_matches(architecture, timm.list_models(), n=3)
        guess = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
        raise UnknownName(
            f"timm has no model {architecture!r}{guess} `timm.list_models()` has all."
        )
    given = {"num_classes": shape["num_classes"], "in_chans": shape["in_channels"], **options}
    try:
        try:
            return timm.create_model(architecture, img_size=shape["image_size"], **given)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
            return timm.create_model(architecture, **given)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise UserError(
            f"timm cannot build {architecture!r} at image_size={shape['image_size']} with options "
            f"{dict(options)}: {str(error) or type(error).__name__}; "
            "options such as patch_size or window_size may be needed"
        ) from error


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


def call_factory(
    name: str, factory: Callable[..., Any], shape: Shape, options: Mapping[str, Any]
) -> Any:
    """Calls a factory with the parts of the shape that it takes and options of the right type."""
    parameters = inspect.signature(factory).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    offered = [n for n in known if n not in shape]
    strange = [n for n in options if n in shape or not (takes_any or n in known)]
    if strange:
        has = f"it has: {', '.join(offered)}" if offered else "it has none"
        raise UserError(f"model {name!r} has no option {strange[0]!r}; {has}")
    needed = [n for n in offered if known[n].default is known[n].empty and n not in options]
    if needed:
        raise UserError(f"model {name!r} needs a value for {needed[0]!r}; pass it as an option")
    hints = _hints(factory) if options else {}
    values = {n: _checked(name, n, v, hints.get(n, Any)) for n, v in options.items()}
    return factory(**{n: v for n, v in shape.items() if n in known}, **values)


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    function = vars(factory).get("__init__", factory) if isinstance(factory, type) else factory
    try:
        return get_type_hints(function)
    except NameError:  # names that a user's file imports for type checkers only
        return {}


def _checked(name: str, option: str, value: Any, hint: Any) -> Any:
    try:
        return TypeAdapter(hint).validate_python(value)
    except PydanticSchemaGenerationError:  # a class of the user's own
        return value
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UserError(f"option {option!r} of model {name!r}: {reason} (got {value!r})") from None


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
