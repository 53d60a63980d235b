"""Configuration: validated specs, safe YAML, overrides and bundled presets."""

from __future__ import annotations

import copy
import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from buttress.errors import UnknownNameError, UserError
from buttress.registry import natural_sort_key, normalize_name, unknown_name_message
from buttress.system.files import digest

MAX_CHARS = 1 << 20  # characters of a file
MAX_OPEN_BRACKETS = 200  # open at once, those in texts too
MAX_DEPTH = 32  # mappings and lists inside each other
MAX_VALUES = 100_000  # values, each counted as often as an alias repeats it
INT64_LIMIT = 1 << 63
YAML_TYPES = ("null", "bool", "int", "float", "str", "seq", "map", "merge")
ALLOWED_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in YAML_TYPES}


def parse_yaml(text: str, source: str) -> Any:
    """Parse a YAML text; raise `UserError` on anything but plain configuration."""
    return copy.deepcopy(_parse_yaml_once(text, source))


@lru_cache(maxsize=64)  # a grid reads its recipe once for each combination of labels
def _parse_yaml_once(text: str, source: str) -> Any:
    if len(text) > MAX_CHARS:
        raise UserError(f"{source} must have at most {MAX_CHARS} characters, but has {len(text)}")
    try:
        _check_brackets(text)
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _count_values(node, 0, {})
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UserError(f"{source} is not valid YAML: {' '.join(reason.split())[:300]}") from None


def _check_brackets(text: str) -> None:
    """Raise on deep nesting, for which parsing time is quadratic."""
    depth = 0
    for match in re.finditer(r"[\[{\]}]", text):
        depth += 1 if match[0] in "[{" else -1
        if depth > MAX_OPEN_BRACKETS:
            raise ValueError("it is nested too deeply")


def _count_values(node: yaml.Node, depth: int, counts: dict[int, int]) -> int:
    """Count the values of a node; raise `ValueError` with its line if it is not plain."""
    location = f"line {node.start_mark.line + 1}"
    if node.tag not in ALLOWED_TAGS:
        kind = node.tag.rpartition(":")[2]
        raise ValueError(f"{location}: type {kind} is not supported; quote it to make it a string")
    if depth > MAX_DEPTH:
        raise ValueError(f"{location} is nested too deeply")
    if isinstance(node, yaml.ScalarNode):
        return _check_scalar(node, location)
    if id(node) not in counts:
        counts[id(node)] = MAX_VALUES  # recursive aliases count as too many
        if isinstance(node, yaml.MappingNode):
            _check_keys(node, location)
        children = [
            n for item in node.value for n in (item if isinstance(item, tuple) else (item,))
        ]
        counts[id(node)] = 1 + sum(_count_values(n, depth + 1, counts) for n in children)
    if counts[id(node)] >= MAX_VALUES:
        raise ValueError(f"{location} expands to {MAX_VALUES} values or more (with aliases)")
    return counts[id(node)]


def _check_scalar(node: yaml.ScalarNode, location: str) -> int:
    if node.tag.endswith(":int"):
        value = yaml.SafeLoader("").construct_yaml_int(node)
        if not -INT64_LIMIT <= value < INT64_LIMIT:
            raise ValueError(f"{location}: integers must fit into 64 bits")
    return 1


def _check_keys(node: yaml.MappingNode, location: str) -> None:
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    if len(keys) < len(node.value):
        raise ValueError(f"{location}: keys must be strings or numbers, not lists or mappings")
    if duplicate_keys := [key for key in keys if keys.count(key) > 1]:
        raise ValueError(
            f"duplicate key {duplicate_keys[0]!r} in the mapping that starts on {location}"
        )


SpecT = TypeVar("SpecT", bound="Spec")
MAX_REPR_CHARS = 200  # characters of a value in a message


class Spec(BaseModel):
    """A validated piece of configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    renamed_keys: ClassVar[Mapping[str, str]] = {}  # key of an older version -> key of today

    @classmethod
    def parse(cls: type[SpecT], raw: object, source: str) -> SpecT:
        """Validate ``raw``; errors are one line with the key and close matches."""
        try:
            spec = cls.model_validate(raw)
            non_finite_key = find_non_finite(spec.model_dump())
        except ValidationError as error:
            raise UserError(validation_message(error, cls, source)) from None
        except RecursionError:
            raise UserError(f"{source} is nested too deeply") from None
        if non_finite_key is not None:
            raise UserError(f"{source}: {non_finite_key or 'value'} must be a finite number")
        return spec

    def digest(self) -> str:
        """A stable hash of the content, the same on every machine."""
        return digest(self.model_dump(mode="json"))


class ComponentSpec(Spec):
    """A registered name with its arguments."""

    name: str
    args: dict[str, Any] = Field(default_factory=dict)


def validation_message(error: ValidationError, cls: type[BaseModel], source: str) -> str:
    """Format the first errors of a validation in one line."""
    lines = []
    for item in error.errors()[:3]:
        path = ".".join(str(key) for key in item["loc"]) or "(top level)"
        if item["type"] == "extra_forbidden":
            accepted = list(keys_at(cls, item["loc"][:-1]))
            key = str(item["loc"][-1])
            close_keys = difflib.get_close_matches(key, accepted, n=1)
            renamed = getattr(cls, "renamed_keys", {}).get(key)
            suggestion = (
                f": it is now {renamed}"
                if renamed
                else f", did you mean {close_keys[0]!r}?"
                if close_keys
                else f"; known keys: {', '.join(accepted)}"
            )
            lines.append(f"unknown key {path!r}{suggestion}")
        else:
            got_note = f" (got {short_repr(item['input'])})" if item["type"] != "missing" else ""
            lines.append(f"{path}: {item['msg'].removeprefix('Value error, ')}{got_note}")
    return " ".join(f"{source}: {'; '.join(lines)}".split())


def short_repr(value: object) -> str:
    """Format a value with repr, truncated for messages."""
    text = repr(value)
    return text if len(text) <= MAX_REPR_CHARS else f"{text[:MAX_REPR_CHARS]}..."


def find_non_finite(value: object, path: str = "") -> str | None:
    """The dotted name of the first number that is NaN or infinite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    pairs: Iterable[tuple[object, object]] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, (list, tuple)):
        pairs = enumerate(value)
    child_paths = (find_non_finite(child, f"{path}.{key}".strip(".")) for key, child in pairs)
    return next((child_path for child_path in child_paths if child_path is not None), None)


def keys_at(cls: type[BaseModel], path: tuple[int | str, ...]) -> tuple[str, ...]:
    """Keys that a spec accepts at a path."""
    for key in path:
        field = cls.model_fields.get(str(key))
        annotation = getattr(field, "annotation", None)
        # Python 3.10 takes tuple[int] for a class until issubclass refuses it.
        member_types = [
            o for o in (annotation, *getattr(annotation, "__args__", ())) if get_origin(o) is None
        ]
        nested = [o for o in member_types if isinstance(o, type) and issubclass(o, BaseModel)]
        if not nested:
            return ()
        cls = nested[0]
    return tuple(cls.model_fields)


def read_yaml(path: Path) -> Any:
    """Read a YAML file; errors have the file and the line."""
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path} must be a YAML file, but is a folder or a special file")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    return parse_yaml(text, str(path))


def apply_overrides(values: Mapping[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    """A copy of ``values`` with ``key.path=value`` changes; values are read as YAML."""
    result: dict[str, Any] = json.loads(json.dumps(values))
    for assignment in overrides:
        path, equals, value = assignment.partition("=")
        if not equals or not path:
            raise UserError(f"an override must be KEY=VALUE, but got {short_repr(assignment)}")
        *parents, last = path.split(".")
        parent_dict = result
        for parent in parents:
            parent_dict = parent_dict.setdefault(parent, {})
            if not isinstance(parent_dict, dict):
                raise UserError(
                    f"override {short_repr(assignment)}: {parent!r} is a value and has no keys"
                )
        parent_dict[last] = parse_yaml(value, f"the value in {short_repr(assignment)}")
    return result


@dataclass(frozen=True)
class PresetFolder:
    """Bundled files of one kind: recipes, suites, studies or searches."""

    kind: str
    folder: str  # below the package
    former_names: Mapping[str, str] = field(default_factory=dict)  # -> name of today

    @property
    def root(self) -> Path:
        return Path(__file__).parent / self.folder

    def names(self) -> list[str]:
        return sorted((p.stem for p in self.root.glob("*.yaml")), key=natural_sort_key)

    def path(self, name: str | Path) -> Path:
        """Path of a bundled preset, or of the user's file."""
        if str(name).endswith((".yaml", ".yml")):
            return Path(name)
        names_by_key = {normalize_name(n): n for n in self.names()}
        names_by_key |= {normalize_name(old): new for old, new in self.former_names.items()}
        if normalize_name(str(name)) not in names_by_key:
            raise UnknownNameError(unknown_name_message(self.kind, str(name), self.names()))
        return self.root / f"{names_by_key[normalize_name(str(name))]}.yaml"

    def load(self, name: str | Path) -> tuple[str, Any]:
        """Load a preset: its name in messages, and its content with a `name`."""
        path = self.path(name)
        content = read_yaml(path)
        if isinstance(content, dict):
            content = {"name": path.stem, **content}
        return f"{self.kind} {path if Path(name) == path else path.name}", content


RECIPES = PresetFolder("recipe", "training/recipes")
SUITES = PresetFolder("suite", "evaluation/suites")
STUDIES = PresetFolder("study", "studies/studies", {"l1-regularisation": "l1-regularization"})
SEARCHES = PresetFolder("search", "studies/searches")
