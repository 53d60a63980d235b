"""Surrogates: a differentiable stand-in for what gives no useful gradient (BPDA).

Backward pass differentiable approximation (Athalye et al. 2018, arXiv:1802.00420): the forward pass
is that of the model, the backward pass goes through the surrogate. A surrogate is

- ``identity``: gradients pass the preprocessing of the model unchanged;
- a function of images ``f(x)``, or of ``f(model, x)``. If it returns images it stands for the
  preprocessing, if it returns logits for the whole model.

The preprocessing is found: it is what lies between the last images in the model that a gradient
connects to the input and the first that none does. ``{"quantize": "identity"}`` (in text,
``quantize=identity``) replaces the backward pass of a named submodule instead.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from buttress.errors import UserError
from buttress.models.eval_mode import eval_mode
from buttress.models.gradient_flow import (
    INPUT,
    PROBE_IMAGES,
    PassPoint,
    find_gradient_stop,
    gradient_reaches_input,
    visit_points,
)
from buttress.models.loading.checkpoint import content_digest
from buttress.models.loading.function import imported_function
from buttress.results.model_code import is_function_name, read_model_code
from buttress.results.surrogate_text import IDENTITY, split_surrogate

StandIn = Callable[[Tensor], Tensor]


class SurrogatePart(NamedTuple):
    """A stand-in and what it stands for."""

    submodule: str  # its name in the model; empty: found, or the whole model
    function: Callable[..., Any] | None  # None: the identity
    text: str  # how records show the function


@dataclass(frozen=True)
class Surrogate:
    """Stand-ins for parts of a model in the backward pass."""

    parts: tuple[SurrogatePart, ...]

    @classmethod
    def parse(cls, value: Any) -> Surrogate:
        """From a text, a function, a model, or a mapping from submodules to any of these."""
        if isinstance(value, Surrogate):
            return value
        items = dict(value) if isinstance(value, Mapping) else _text_items(value)
        return cls(tuple(_parse_part(str(name), item) for name, item in items.items()))

    def __str__(self) -> str:
        """What records say; functions are named with a hash of their code."""
        return ",".join(f"{p.submodule}={p.text}" if p.submodule else p.text for p in self.parts)

    def attach(self, model: nn.Module, x: Tensor) -> SurrogateModel:
        """The model with the gradients of this surrogate; ``x`` are images to check it on."""
        x = x[:PROBE_IMAGES].detach()
        with eval_mode(model):
            wrapped = SurrogateModel(model, [_resolve_part(part, model, x) for part in self.parts])
            if not gradient_reaches_input(wrapped, x):
                raise UserError(
                    f"surrogate {self}: no gradient reaches the input; another part of the model "
                    "stops it, or the surrogate itself does. Name each submodule to replace "
                    "(NAME=identity), or write a function f(model, x) that returns logits"
                )
        return wrapped


class Replacement(NamedTuple):
    """Where a stand-in takes its input, and whose backward pass it replaces."""

    source: PassPoint
    target: PassPoint | None  # None: the logits
    function: StandIn


class SurrogateModel(nn.Module):
    """A model with its own outputs, and the gradients of a surrogate."""

    has_gradients = True

    def __init__(self, model: nn.Module, replacements: Sequence[Replacement]) -> None:
        super().__init__()
        self.model, self.replacements = model, tuple(replacements)
        self.functions = nn.ModuleList(  # for their mode
            r.function for r in replacements if isinstance(r.function, nn.Module)
        )
        self.training = self.functions.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self._call_model(x)
        whole = next((r.function for r in self.replacements if r.target is None), None)
        if whole is not None:
            with torch.no_grad():
                logits = self._call_model(x)
            return _replace_backward(logits, whole(x))
        sources: dict[PassPoint, Tensor] = {}

        def visit(point: PassPoint, tensor: Tensor) -> Tensor:
            for replacement in self.replacements:
                if point == replacement.target:
                    stand_in = replacement.function(sources[replacement.source])
                    tensor = _replace_backward(tensor, stand_in)
            if any(point == r.source for r in self.replacements):
                sources[point] = tensor
            return tensor

        points = [p for r in self.replacements for p in (r.source, r.target) if p is not None]
        with visit_points(self.model, list(dict.fromkeys(points)), visit):
            return self._call_model(x)

    def _call_model(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits


class _ReplaceBackward(torch.autograd.Function):
    """The first argument, exactly, with the gradient of the second."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, stand_in: Tensor) -> Tensor:
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, Any]:
        return None, grads[0]


def _replace_backward(value: Tensor, stand_in: Tensor) -> Tensor:
    if value.shape != stand_in.shape:
        raise UserError(
            f"a surrogate must return the shape that it stands for, {tuple(value.shape[1:])} per "
            f"image, but returned {tuple(stand_in.shape[1:])}"
        )
    result: Tensor = _ReplaceBackward.apply(value, stand_in)
    return result


def _resolve_part(part: SurrogatePart, model: nn.Module, x: Tensor) -> Replacement:
    function = _bind(part, model)
    if part.submodule:
        name = _find_submodule(part, model)
        source, target = (PassPoint(name, is_output) for is_output in (False, True))
        return Replacement(source, target, function)
    if part.function is not None and function(x).ndim == 2:  # logits (N, K)
        return Replacement(INPUT, None, function)
    stop = find_gradient_stop(model, x)
    if stop is None:
        raise UserError(
            f"surrogate {part.text}: gradients reach everything in the model that has the shape of "
            f"images {tuple(x.shape[1:])}, so there is no preprocessing to find; name the "
            f"submodule to replace (NAME={part.text}), or write a function f(model, x) that "
            "returns logits"
        )
    return Replacement(*stop, function)


def _find_submodule(part: SurrogatePart, model: nn.Module) -> str:
    """The full name of a submodule; the outermost that ends so, as a loaded model is wrapped."""
    names = [name for name, _ in model.named_modules() if name]
    matches = [n for n in names if f".{n}".endswith(f".{part.submodule}")]
    if not matches:
        raise UserError(
            f"surrogate {part.submodule}={part.text}: the model has no submodule "
            f"{part.submodule!r}; it has {', '.join(names[:10]) or 'none'}"
            f"{' ...' if len(names) > 10 else ''}"
        )
    return min(matches, key=lambda n: n.count("."))


def _bind(part: SurrogatePart, model: nn.Module) -> StandIn:
    """The stand-in as a function of one tensor."""
    function = part.function
    if function is None:
        return lambda x: x
    if isinstance(function, nn.Module):
        return function
    takes_model = len(_required_parameters(function)) > 1

    def stand_in(x: Tensor) -> Tensor:
        out = function(model, x) if takes_model else function(x)
        if not isinstance(out, Tensor):
            raise UserError(
                f"surrogate {part.text} must return a tensor of images or of logits, but returned "
                f"{type(out).__name__}"
            )
        return out

    return stand_in


def _required_parameters(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin says nothing
        return ["x"]
    return [p.name for p in parameters if p.default is p.empty and p.kind != p.VAR_POSITIONAL]


def _text_items(value: Any) -> Mapping[str, Any]:
    return split_surrogate(value) if isinstance(value, str) else {"": value}


def _parse_part(submodule: str, value: Any) -> SurrogatePart:
    if isinstance(value, str) and value == IDENTITY:
        return SurrogatePart(submodule, None, IDENTITY)
    if isinstance(value, str) and is_function_name(value):
        with imported_function(value) as function:
            sha256 = read_model_code(value).sha256
            path, _, name = value.rpartition(":")
            text = f"{Path(path).name}:{name}"
            stand_in: Any = function() if inspect.isclass(function) else function
            return SurrogatePart(submodule, stand_in, f"{text} (sha256 {sha256[:12]})")
    if not callable(value):
        raise UserError(
            "`surrogate` must be identity, FILE.py:FUNCTION, a function, a model, or a mapping "
            f"from names of submodules to these, but got {value!r}"
        )
    name = getattr(value, "__qualname__", type(value).__name__)
    return SurrogatePart(submodule, value, f"{name} (sha256 {_code_hash(value)[:12]})")


def _code_hash(function: Callable[..., Any]) -> str:
    """A hash of the code of a function, and of the weights of a model."""
    kind = type(function) if isinstance(function, nn.Module) else function
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # typed into a console, or compiled
        source = getattr(kind, "__qualname__", str(kind))
    code = getattr(kind, "__code__", None)  # two lambdas may share a line of source
    constants = [c for c in getattr(code, "co_consts", ()) if isinstance(c, int | float | str)]
    text = f"{source}{getattr(code, 'co_code', b'').hex()}{constants}"
    weights = content_digest(function.state_dict()) if isinstance(function, nn.Module) else ""
    return hashlib.sha256((text + weights).encode()).hexdigest()
