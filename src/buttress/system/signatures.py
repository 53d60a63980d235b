"""Calls of public functions that do not fit the signature, answered with what to write."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from buttress.errors import ArgumentError
from buttress.registry import close_names_text

P = ParamSpec("P")
R = TypeVar("R")

# Names of arguments in other libraries, and what they are called here.
FOREIGN_NAMES = {
    "n_examples": "limit", "n_ex": "limit", "num_examples": "limit", "num_samples": "limit",
    "n_samples": "limit", "max_samples": "limit", "bs": "batch_size", "epsilon": "eps",
    "epsilons": "eps", "attack": "suite", "attacks": "suite", "attacks_to_run": "suite",
    "model_name": "source", "name_or_path": "source", "num_labels": "num_classes",
    "classes": "num_classes", "n_classes": "num_classes", "img_size": "image_size",
    "in_chans": "in_channels", "dataset": "data", "data": "dataset", "dataloader": "data",
    "loader": "data", "save_dir": "out", "output_dir": "out", "config": "recipe",
    "images": "x", "inputs": "x", "labels": "y", "targets": "y", "target": "y",
}  # fmt: skip


def explain_arguments(
    example: str, hints: Mapping[str, str] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: calls that do not fit its signature say what to write.

    ``example`` is a call that works; ``hints`` say what to do in place of an argument that users
    of other libraries expect, where it has no name here.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                reason = _unknown_argument_text(signature, kwargs, hints or {}) or str(error)
                title = function.__name__.strip("_")
                message = f"{title}(): {reason}; e.g. {example}"
                raise ArgumentError(message) from None
            return function(*args, **kwargs)

        return checked

    return decorate


def _unknown_argument_text(
    signature: inspect.Signature, given: Mapping[str, Any], hints: Mapping[str, str]
) -> str:
    """What to write in place of the first argument that the signature does not have."""
    known = [name for name in signature.parameters if name != "self"]
    unknown = next((name for name in given if name not in known), "")
    if not unknown or any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        return ""
    head = f"there is no argument {unknown!r}"
    if unknown in hints:
        return f"{head}: {hints[unknown]}"
    if FOREIGN_NAMES.get(unknown) in known:
        return f"{head}; here it is called `{FOREIGN_NAMES[unknown]}`"
    return f"{head}{close_names_text(unknown, known).removesuffix('.').removesuffix('?')}"
