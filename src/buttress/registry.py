"""Name -> thing, with what is known about it: the one way anything is found by name."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, UnionType
from typing import (
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

from buttress.errors import UnknownName, UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One registered thing, the paper it comes from, and tags to list it by."""

    name: str
    value: T
    paper: str = ""
    tags: tuple[str, ...] = ()
    about: str = ""
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def canonical(name: str) -> str:
    """Names compare in lower case, with ``-`` and ``_`` alike."""
    return name.strip().lower().replace("-", "_")


class Registry(Generic[T]):
    """A table of named things of one kind. A second registration of a name is refused."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def register(
        self,
        name: str,
        *,
        paper: str = "",
        tags: tuple[str, ...] = (),
        about: str = "",
        **extra: Any,
    ) -> Callable[[T], T]:
        """Decorator that registers a value; ``about`` defaults to its docstring's first line."""

        def add(value: T) -> T:
            key = canonical(name)
            if key in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            text = about or (getattr(value, "__doc__", None) or "").strip().split("\n")[0]
            self._entries[key] = Entry(name, value, paper, tags, text, MappingProxyType(extra))
            return value

        return add

    def entry(self, name: str) -> Entry[T]:
        found = self._entries.get(canonical(name))
        if found is None:
            raise UnknownName(unknown(self.kind, name, self.names()))
        return found

    def get(self, name: str) -> T:
        return self.entry(name).value

    def create(self, name: str, args: Mapping[str, Any]) -> Any:
        """Calls what is registered; an argument it does not have is an error that lists its own."""
        self.check(name, args)
        return cast(Callable[..., Any], self.get(name))(**args)

    def check(self, name: str, args: Mapping[str, Any], besides: Collection[str] = ()) -> None:
        """Refuses arguments that do not fit; ``besides`` are parameters that others fill."""
        entry = self.entry(name)
        every = inspect.signature(cast(Callable[..., Any], entry.value)).parameters
        known = [parameter for parameter in every if parameter not in besides]
        if strange := [a for a in args if a not in known]:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise UserError(f"{self.kind} {entry.name!r} has no argument {strange[0]!r}; {takes}")
        hints = _hints(entry.value) if args else {}
        for word, value in args.items():
            if problem := misfit(value, hints.get(word, Any)):
                raise UserError(
                    f"{self.kind} {entry.name!r}: `{word}` must be {problem}, but got {value!r}"
                )

    def names(self, tag: str | None = None) -> list[str]:
        """All names in natural order, or those with a tag."""
        chosen = [e.name for e in self._entries.values() if tag is None or tag in e.tags]
        return sorted(chosen, key=natural)

    def __contains__(self, name: str) -> bool:
        return canonical(name) in self._entries

    def __iter__(self) -> Iterator[Entry[T]]:
        return (self._entries[canonical(n)] for n in self.names())

    def __len__(self) -> int:
        return len(self._entries)


def _hints(value: Any) -> dict[str, Any]:
    try:
        return get_type_hints(value)
    except NameError:  # names that are imported for type checkers only
        return {}


def misfit(value: Any, hint: Any) -> str | None:
    """What a value must be to fit a type of numbers, words and tuples of these; None if it does.

    Types of other kinds are left to whoever takes the value.
    """
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    problems = [_misfit_one(value, option) for option in options]
    if any(problem is None for problem in problems):
        return None
    return " or ".join(dict.fromkeys(str(problem) for problem in problems))


def _misfit_one(value: Any, hint: Any) -> str | None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if hint is int:
        is_whole = is_number and isinstance(value, numbers.Integral) and abs(int(value)) < 1 << 63
        return None if is_whole else "a whole number"
    if hint is float:
        return None if is_number and math.isfinite(value) else "a finite number"
    if hint in (bool, str):
        return None if isinstance(value, hint) else {bool: "true or false", str: "a text"}[hint]
    if hint is type(None):
        return None if value is None else "nothing"
    if get_origin(hint) is Literal:
        words = get_args(hint)
        return None if value in words else f"one of {', '.join(map(str, words))}"
    if get_origin(hint) is tuple and get_args(hint)[1:] == (...,):
        if not isinstance(value, (list, tuple)):
            return "a list"
        inside = (misfit(item, get_args(hint)[0]) for item in value)
        return next((f"a list of which each is {problem}" for problem in inside if problem), None)
    return None


def unknown(kind: str, name: str, known: list[str]) -> str:
    """The text of an unknown-name error: what came, what is near, how to list all."""
    near = difflib.get_close_matches(
        canonical(name), [canonical(k) for k in known], n=3, cutoff=0.5
    )
    spelt = {canonical(k): k for k in known}
    guess = f"; did you mean {' or '.join(repr(spelt[n]) for n in near)}?" if near else "."
    plural = {"analysis": "analyses", "study": "studies"}.get(kind, kind + "s")
    return f"there is no {kind} {name!r}{guess} `buttress list {plural}` shows all {len(known)}."


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key that puts ``x_9`` before ``x_10``."""
    pieces = re.findall(r"\d+|\D+", name)
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in pieces]
