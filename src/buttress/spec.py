"""The base of everything that is configured: frozen, and no key is accepted that is not known."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from buttress.errors import UserError
from buttress.plain_yaml import parse_yaml

S = TypeVar("S", bound="Spec")
LONGEST_SHOWN = 200  # characters of a value in a message


class Spec(BaseModel):
    """A validated piece of configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @classmethod
    def parse(cls: type[S], raw: object, where: str) -> S:
        """Validates ``raw``; a mistake becomes one line that names its place and the near keys."""
        try:
            found = cls.model_validate(raw)
            strange = not_finite(found.model_dump())
        except ValidationError as error:
            raise UserError(explain(error, cls, where)) from None
        except RecursionError:
            raise UserError(f"{where} is nested too deeply") from None
        if strange is not None:
            raise UserError(f"{where}: {strange or 'it'} must be a finite number")
        return found

    def digest(self) -> str:
        """A stable hash of the content, the same on every machine."""
        return digest(self.model_dump(mode="json"))


class Component(Spec):
    """Something found by name in a registry, with the arguments it is called with."""

    name: str
    args: dict[str, Any] = Field(default_factory=dict)


def digest(content: object) -> str:
    body = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(body.encode()).hexdigest()


def explain(error: ValidationError, cls: type[BaseModel], where: str) -> str:
    """One line for the first mistakes of a validation."""
    lines = []
    for item in error.errors()[:3]:
        path = ".".join(str(part) for part in item["loc"]) or "the whole"
        if item["type"] == "extra_forbidden":
            known = list(known_keys(cls, item["loc"][:-1]))
            near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
            guess = f", did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(known)}"
            lines.append(f"unknown key {path!r}{guess}")
        else:
            came = f" (got {short(item['input'])})" if item["type"] != "missing" else ""
            lines.append(f"{path}: {item['msg'].removeprefix('Value error, ')}{came}")
    return " ".join(f"{where}: {'; '.join(lines)}".split())


def short(value: object) -> str:
    """A value as Python writes it, cut where a message would drown in it."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def not_finite(value: object, path: str = "") -> str | None:
    """The dotted name of the first number that is NaN or infinite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    pairs: Iterable[tuple[object, object]] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, (list, tuple)):
        pairs = enumerate(value)
    found = (not_finite(inner, f"{path}.{key}".strip(".")) for key, inner in pairs)
    return next((place for place in found if place is not None), None)


def known_keys(cls: type[BaseModel], path: tuple[int | str, ...]) -> tuple[str, ...]:
    """The keys that are accepted at a place inside a spec."""
    for part in path:
        found = cls.model_fields.get(str(part))
        inner = getattr(found, "annotation", None)
        # Python 3.10 takes tuple[int] for a class until issubclass refuses it.
        options = [o for o in (inner, *getattr(inner, "__args__", ())) if get_origin(o) is None]
        nested = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
        if not nested:
            return ()
        cls = nested[0]
    return tuple(cls.model_fields)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; a mistake in it names the file and the line."""
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path} must be a YAML file, but is something else")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    return parse_yaml(text, str(path))


def override(raw: Mapping[str, Any], changes: tuple[str, ...]) -> dict[str, Any]:
    """A copy of ``raw`` with ``key.path=value`` changes; values are read as YAML."""
    result: dict[str, Any] = json.loads(json.dumps(raw))
    for change in changes:
        path, sep, value = change.partition("=")
        if not sep or not path:
            raise UserError(f"an override is written key=value, but got {short(change)}")
        *parents, last = path.split(".")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise UserError(
                    f"override {short(change)}: {parent!r} holds a value, not further keys"
                )
        place[last] = parse_yaml(value, f"the value in {short(change)}")
    return result
