"""Registry of named objects with paper, tags and summary."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, MinLen

from buttress.errors import UnknownNameError, UserError

T = TypeVar("T")


@dataclass(frozen=True)
class RegistryEntry(Generic[T]):
    """A registered object with its paper, tags and summary."""

    name: str
    value: T
    paper: str = ""
    tags: tuple[str, ...] = ()
    summary: str = ""
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters of a callable value."""
        return tuple(inspect.signature(cast(Callable[..., Any], self.value)).parameters)

    @cached_property
    def type_hints(self) -> dict[str, Any]:
        """Annotations of a callable value; empty if they name what only type checkers import."""
        try:
            return get_type_hints(self.value, include_extras=True)
        except NameError:
            return {}


def normalize_name(name: str) -> str:
    """Normalize a name: lower case, ``-`` as ``_``."""
    return name.strip().lower().replace("-", "_")


class Registry(Generic[T]):
    """Registry of objects of one kind; names must be unique."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, RegistryEntry[T]] = {}

    def register(
        self,
        name: str,
        *,
        paper: str = "",
        tags: tuple[str, ...] = (),
        summary: str = "",
        **metadata: Any,
    ) -> Callable[[T], T]:
        """Decorator that registers a value; ``summary`` defaults to its docstring's first line."""

        def decorate(value: T) -> T:
            key = normalize_name(name)
            if key in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            text = summary or (getattr(value, "__doc__", None) or "").strip().split("\n")[0]
            self._entries[key] = RegistryEntry(
                name, value, paper, tags, text, MappingProxyType(metadata)
            )
            return value

        return decorate

    def entry(self, name: str) -> RegistryEntry[T]:
        entry = self._entries.get(normalize_name(name))
        if entry is None:
            raise UnknownNameError(unknown_name_message(self.kind, name, self.names()))
        return entry

    def get(self, name: str) -> T:
        return self.entry(name).value

    def create(self, name: str, args: Mapping[str, Any]) -> Any:
        """Call a registered object; unknown arguments raise `UserError`."""
        self.check_args(name, args)
        return cast(Callable[..., Any], self.get(name))(**args)

    def check_args(self, name: str, args: Mapping[str, Any], ignored: Collection[str] = ()) -> None:
        """Raise on unknown or invalid arguments; ``ignored`` are parameters set elsewhere."""
        entry = self.entry(name)
        accepted = [parameter for parameter in entry.parameters if parameter not in ignored]
        if unknown_args := [a for a in args if a not in accepted]:
            accepted_text = f"accepted: {', '.join(accepted)}" if accepted else "it takes none"
            raise UserError(
                f"{self.kind} {entry.name!r} got an unknown argument {unknown_args[0]!r}; "
                f"{accepted_text}"
            )
        hints = entry.type_hints if args else {}
        for arg_name, value in args.items():
            if expected := expected_type_text(value, hints.get(arg_name, Any)):
                raise UserError(
                    f"{self.kind} {entry.name!r}: `{arg_name}` must be {expected}, "
                    f"but got {value!r}"
                )

    def names(self, tag: str | None = None) -> list[str]:
        """All names in natural order, or those with a tag."""
        names = [e.name for e in self._entries.values() if tag is None or tag in e.tags]
        return sorted(names, key=natural_sort_key)

    def __contains__(self, name: str) -> bool:
        return normalize_name(name) in self._entries

    def __iter__(self) -> Iterator[RegistryEntry[T]]:
        return (self._entries[normalize_name(n)] for n in self.names())

    def __len__(self) -> int:
        return len(self._entries)


def expected_type_text(value: Any, hint: Any) -> str | None:
    """Describe the expected type of a value; None if the value fits.

    Types of other kinds are left to whoever takes the value.
    """
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    expected = [_expected_one(value, option) for option in options]
    if any(problem is None for problem in expected):
        return None
    return " or ".join(dict.fromkeys(str(problem) for problem in expected))


def _expected_one(value: Any, hint: Any) -> str | None:
    if get_origin(hint) is Annotated:
        return _expected_within_limits(value, *get_args(hint))
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if hint is int:
        is_int = is_number and isinstance(value, numbers.Integral) and abs(int(value)) < 1 << 63
        return None if is_int else "an integer"
    if hint is float:
        return None if is_number and math.isfinite(value) else "a finite number"
    if hint in (bool, str):
        return None if isinstance(value, hint) else {bool: "true or false", str: "a string"}[hint]
    if hint is type(None):
        return None if value is None else "null"
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return None if value in choices else f"one of {', '.join(map(str, choices))}"
    if get_origin(hint) is tuple and get_args(hint)[1:] == (...,):
        if not isinstance(value, (list, tuple)):
            return "a list"
        item_errors = (expected_type_text(item, get_args(hint)[0]) for item in value)
        return next(
            (f"a list whose items are each {problem}" for problem in item_errors if problem), None
        )
    return None


def _expected_within_limits(value: Any, hint: Any, *limits: Any) -> str | None:
    """The same for ``Annotated[int, Ge(1)]`` and its like."""
    if problem := expected_type_text(value, hint):
        return problem
    name = {int: "an integer", float: "a finite number"}.get(hint, "a list")
    for limit in limits:
        if isinstance(limit, Ge) and not value >= limit.ge:
            return f"{name} of at least {limit.ge}"
        if isinstance(limit, Gt) and not value > limit.gt:
            return f"{name} above {limit.gt}"
        if isinstance(limit, MinLen) and len(value) < limit.min_length:
            return f"{name} of at least {limit.min_length}"
    return None


def close_names_text(name: str, names: Collection[str]) -> str:
    """``; did you mean 'x' or 'y'?`` with the names that are nearest to a misspelt one."""
    original_names = {normalize_name(k): k for k in names}
    close_keys = difflib.get_close_matches(
        normalize_name(name), list(original_names), n=3, cutoff=0.5
    )
    if not close_keys:
        return "."
    return f"; did you mean {' or '.join(repr(original_names[n]) for n in close_keys)}?"


ROBUSTBENCH_NAME = re.compile(r"[A-Z][A-Za-z]+(19|20)\d\d\w*|Standard")


def is_robustbench_name(name: str) -> bool:
    """Whether a name has the form of RobustBench's models, such as Carmon2019Unlabeled."""
    return ROBUSTBENCH_NAME.fullmatch(name) is not None


def robustbench_name_text(name: str) -> str:
    """What to write for the name of a model of RobustBench."""
    return f"; a model of RobustBench is written robustbench:cifar10/Linf/{name}."


def unknown_name_message(kind: str, name: str, names: Collection[str]) -> str:
    """Message of an unknown name, with close matches and how to list all."""
    plural = {"analysis": "analyses", "study": "studies", "search": "searches"}.get(
        kind, kind + "s"
    )
    own = " Images of your own are folder:PATH or npz:PATH." if kind == "dataset" else ""
    return (
        f"unknown {kind} {name!r}{close_names_text(name, names)} Run `buttress list {plural}` to "
        f"see all {len(names)}.{own}"
    )


def natural_sort_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key that puts ``x_9`` before ``x_10``."""
    tokens = re.findall(r"\d+|\D+", name)
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in tokens]
