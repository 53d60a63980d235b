"""Deliberate errors, put into the real source of a function while a test runs."""

from __future__ import annotations
import __future__

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from buttress.errors import RunError

# How a test, or the check of every result, says no. Whatever else is raised is no catch: a change
# that does not even run proves nothing.
SAYS_NO = (AssertionError, RunError, pytest.fail.Exception)


@dataclass(frozen=True)
class Mutation:
    """One change of one function, and a test that must not survive it."""

    name: str
    where: str  # module:function or module:Class.method, below buttress
    old: str
    new: str
    caught_by: Callable[..., object]
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return self.name.replace(" ", "_")


def applied(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles the changed source and puts it wherever the function is known by its name."""
    path, _, qualname = mutation.where.partition(":")
    module = importlib.import_module(f"buttress.{path}")
    *owners, name = qualname.split(".")
    owner: Any = getattr(module, owners[0]) if owners else module
    original = vars(owner)[name]
    source = textwrap.dedent(inspect.getsource(_function(original)))
    assert source.count(mutation.old) == 1, f"{mutation.old!r} must occur once in\n{source}"
    assert "super()" not in source, "it would not know its class"
    code = compile(
        source.replace(mutation.old, mutation.new), f"<{mutation.name}>", "exec",
        flags=__future__.annotations.compiler_flag, dont_inherit=True,
    )  # fmt: skip
    made: dict[str, Any] = {}
    exec(code, vars(module), made)  # decorators run again, globals are those of the module
    changed = made[name]
    if isinstance(changed, cached_property):
        changed.__set_name__(owner, name)
    homes = [owner] if owners else [
        known for known in list(sys.modules.values())
        if getattr(known, "__dict__", {}).get(name) is original
    ]  # fmt: skip
    assert homes
    for home in homes:
        monkeypatch.setattr(home, name, changed)


def _function(value: Any) -> Callable[..., Any]:
    """The function inside a property, a cache, a class method or a context manager."""
    for inner in ("fget", "func", "__func__"):
        value = getattr(value, inner, None) or value
    return inspect.unwrap(value)
