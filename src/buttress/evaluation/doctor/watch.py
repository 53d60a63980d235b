"""Which functions a network calls that make its answer random or dependent on the batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from buttress.attacks.freeze import frozen

RANDOM = re.compile(
    r"(rand(int|n|perm)?(_like)?|bernoulli|multinomial|normal|poisson|rrelu|random|uniform"
    r"|exponential)_?"
)
DROPOUT = re.compile(r"(alpha_|feature_)?dropout[123]?d?")
BATCH_NORM = "batch_norm"


class Watch(TorchFunctionMode):
    """Notes the names of such functions while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.random: dict[str, None] = {}  # in the order they were called
        self.by_batch: dict[str, None] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, given = getattr(func, "__name__", ""), dict(kwargs or {})
        is_on = given.get("training", True in [a for a in args if isinstance(a, bool)])
        if RANDOM.fullmatch(name) or (DROPOUT.fullmatch(name) and is_on):
            self.random[name.rstrip("_")] = None
        if name == BATCH_NORM and is_on:
            self.by_batch[name] = None
        return func(*args, **given)


def watched(model: nn.Module, x: Tensor) -> Watch:
    """What a network calls in evaluation mode."""
    watch = Watch()
    with frozen(model), torch.no_grad(), watch:
        model(x)
    return watch


def still_training(model: nn.Module) -> list[str]:
    """The kinds of modules that stay in training mode when evaluation mode is asked for."""
    with frozen(model):
        return list(dict.fromkeys(_training(model)))


def in_training(model: nn.Module) -> list[str]:
    """The kinds of modules that are in training mode now, those that matter first."""
    kinds = list(dict.fromkeys(_training(model)))
    return sorted(kinds, key=lambda k: "Dropout" not in k and "BatchNorm" not in k)


def _training(model: nn.Module) -> Iterator[str]:
    return (type(m).__name__ for m in model.modules() if m.training)
